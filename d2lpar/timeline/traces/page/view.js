// A timeline that one can touch, on a canvas: the same in a notebook, on the site and in a file.
//
// `show(element, packed)` draws what `page_data.packed` made: spans sorted by row and start, times
// in picoseconds from the first. Only what is within the window is looked at, and what would fall
// on one pixel of a row is drawn once, so that 100,000 spans move smoothly.

const ROW = 24, BAR = 18, AXIS = 24, PAD = 6, MEMORY = 64, GAP = 10, TALLEST = 560, NEAR = 4;
const FONT = "12px system-ui, sans-serif", SMALL = "11px system-ui, sans-serif";
const AWAITED = 4; // the reason why a wait of the host ended
const THIN = 3, THINNEST = 0.75, GAPLESS = 0.6, NAMED = 24; // pixels of a bar, or between two
const CHAIN = "#d55e00", STEP = 0.2, CLOSER = 1.25, FEWEST_PS = 1e3;

export async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// --- what is shown ------------------------------------------------------------------------------

class Spans {
  constructor(data) {
    Object.assign(this, data);
    const { row, start, duration } = data.spans, count = row.length;
    this.count = count;
    this.row = Uint32Array.from(row);
    this.start = new Float64Array(count);
    this.end = new Float64Array(count);
    this.reach = new Float64Array(count); // the latest end so far, in its row
    this.first = new Array(data.rows.length + 1).fill(count);
    for (let i = count - 1; i >= 0; --i) this.first[row[i]] = i;
    for (let r = data.rows.length - 1; r >= 0; --r)
      this.first[r] = Math.min(this.first[r], this.first[r + 1]);
    for (let i = 0; i < count; ++i) {
      const begins = i === this.first[row[i]];
      this.start[i] = (begins ? 0 : this.start[i - 1]) + start[i];
      this.end[i] = this.start[i] + duration[i];
      this.reach[i] = begins ? this.end[i] : Math.max(this.end[i], this.reach[i - 1]);
    }
    this.length = Math.max(1, data.length);
  }

  // The first span of a row that may reach a moment, and the first that begins after it.
  reaching = (row, time) => bisect(this.reach, time, this.first[row], this.first[row + 1]);
  after = (row, time) => bisect(this.start, time, this.first[row], this.first[row + 1], true);

  at(row, time, slack) {
    let best = -1, nearest = slack;
    const last = this.after(row, time + slack);
    for (let i = last - 1; i >= this.first[row] && this.reach[i] >= time - slack; --i) {
      const far = Math.max(this.start[i] - time, time - this.end[i], 0);
      if (far < nearest || (far === nearest && best < 0)) [best, nearest] = [i, far];
      if (!far) break;
    }
    return best;
  }

  // Picoseconds of a window in which rows did something of these kinds; spans may overlap.
  busy(rows, kinds, from, to) {
    const pieces = [];
    for (const row of rows)
      for (let i = this.reaching(row, from), n = this.after(row, to); i < n; ++i)
        if (kinds.has(this.kinds[this.spans.kind[i]].kind) && this.end[i] > from)
          pieces.push([Math.max(from, this.start[i]), Math.min(to, this.end[i])]);
    pieces.sort((a, b) => a[0] - b[0]);
    let sum = 0, reached = from;
    for (const [start, end] of pieces) {
      if (end > reached) sum += end - Math.max(start, reached);
      reached = Math.max(reached, end);
    }
    return sum;
  }
}

function bisect(sorted, value, low, high, beyond = false) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (beyond ? sorted[middle] <= value : sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

const UNITS = [[1e12, "s"], [1e9, "ms"], [1e6, "µs"], [1e3, "ns"], [1, "ps"]];
function timeText(ps, digits = 4) {
  const [size, unit] = UNITS.find(([size]) => Math.abs(ps) >= size) ?? [1e6, "µs"];
  return `${+(ps / size).toPrecision(digits)} ${unit}`;
}
function amount(value, unit) {
  const [size, prefix] = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]]
    .find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return `${+(value / size).toPrecision(3)} ${prefix}${unit}`;
}
const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
const filled = (text, words) => text.replace(/\{(\w+)\}/g, (_, name) => words[name]);

// --- the view -----------------------------------------------------------------------------------

class View {
  constructor(element, spans) {
    this.spans = spans;
    this.texts = spans.texts;
    [this.from, this.to] = spans.window;
    this.hovered = this.selected = -1;
    this.range = null;
    this.chain = spans.chain.length > 0 && spans.show_chain;
    this.widths = new Map();
    this.build(element);
    this.resize = new ResizeObserver(() => this.fit());
    this.resize.observe(this.root);
    this.fit();
  }

  build(element) {
    const root = (this.root = make("div", "d2lpar-timeline"));
    if (this.spans.title) root.append(make("div", "d2lpar-title", this.spans.title));
    root.dataset.lmSuppressShortcuts = "true"; // of JupyterLab, whose letters are ours here
    const bar = make("div", "d2lpar-bar");
    const button = (text, label, action) => {
      const made = make("button", "", text);
      Object.assign(made, { type: "button", title: label, ariaLabel: label, onclick: action });
      bar.append(made);
      return made;
    };
    button("+", this.texts.closer, () => this.zoom(1 / CLOSER ** 2));
    button("−", this.texts.wider, () => this.zoom(CLOSER ** 2));
    button("⤢", this.texts.all, () => this.move(0, this.spans.length));
    if (this.spans.chain.length)
      this.chainButton = button(this.texts.chain, this.texts.chain_label, () => this.toggle());
    button("?", this.texts.keys_label, () => (help.hidden = !help.hidden));
    for (const { label, color } of this.spans.kinds) {
      const key = make("span", "d2lpar-key", label);
      key.style.setProperty("--kind", color);
      bar.append(key);
    }
    const help = make("p", "d2lpar-help", this.texts.keys);
    help.hidden = true;
    this.frame = make("div", "d2lpar-frame");
    this.canvas = make("canvas");
    Object.assign(this.canvas, { tabIndex: 0, role: "application", ariaLabel: this.spans.summary });
    this.tip = make("div", "d2lpar-tip");
    this.tip.hidden = true;
    this.frame.append(this.canvas);
    this.said = make("div", "d2lpar-said", this.texts.hint);
    this.said.setAttribute("role", "status");
    root.append(bar, help, this.frame, this.said, this.tip);
    if (this.spans.note) root.append(make("div", "d2lpar-note", this.spans.note));
    element.append(root);
    this.paint = this.canvas.getContext("2d");
    this.listen();
    if (this.chainButton) this.chainButton.ariaPressed = String(this.chain);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.follow(event));
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => (this.drag = null));
    canvas.addEventListener("pointerleave", () => this.hover(-1));
    canvas.addEventListener("dblclick", () => this.focusOn(this.selected));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.later());
    canvas.addEventListener("blur", () => this.later());
  }

  // --- places ---

  fit() {
    const { spans, canvas } = this, ratio = globalThis.devicePixelRatio || 1;
    this.width = Math.max(240, this.root.clientWidth);
    this.paint.font = FONT;
    const widest = Math.max(...spans.rows.map(([, label]) => this.paint.measureText(label).width));
    this.left = Math.min(widest + PAD + 12, this.width * 0.4);
    this.bottom = spans.rows.length * ROW;
    this.height = this.bottom + AXIS + (spans.memory.length ? GAP + MEMORY : 0);
    [canvas.width, canvas.height] = [this.width * ratio, this.height * ratio];
    Object.assign(canvas.style, { width: `${this.width}px`, height: `${this.height}px` });
    this.frame.style.maxHeight = `${TALLEST}px`;
    this.paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.draw();
  }

  get scale() { return (this.width - this.left - 8) / (this.to - this.from); }
  x(time) { return this.left + (time - this.from) * this.scale; }
  time(x) { return this.from + (x - this.left) / this.scale; }
  rowAt(y) { return Math.min(Math.max(Math.floor(y / ROW), 0), this.spans.rows.length - 1); }

  move(from, to) {
    const length = Math.min(Math.max(to - from, FEWEST_PS), this.spans.length);
    this.from = Math.min(Math.max(from, 0), this.spans.length - length);
    this.to = this.from + length;
    this.later();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.move(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(part) { this.move(this.from + part * (this.to - this.from), this.to + part * (this.to - this.from)); }

  focusOn(i) {
    if (i < 0) return;
    const { start, end } = this.spans, around = Math.max(end[i] - start[i], FEWEST_PS);
    this.move(start[i] - 2 * around, end[i] + 2 * around);
  }

  reveal(i) {
    const { start, end } = this.spans, margin = (this.to - this.from) / 20;
    if (start[i] < this.from || end[i] > this.to) {
      const length = Math.max(this.to - this.from, (end[i] - start[i]) * 1.2);
      const from = start[i] < this.from ? start[i] - margin : end[i] + margin - length;
      this.move(from, from + length);
    }
    const top = this.spans.row[i] * ROW, { frame } = this;
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (top + ROW > frame.scrollTop + frame.clientHeight)
      frame.scrollTop = top + ROW - frame.clientHeight;
  }

  // --- hands ---

  wheel(event) {
    const focused = this.canvas.matches(":focus");
    if (!focused && !event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      this.pan((event.deltaX || event.deltaY) / this.width);
    else this.zoom(Math.exp(event.deltaY / 400), this.time(event.offsetX));
  }

  press(event) {
    this.canvas.focus({ preventScroll: true });
    this.hover(-1);
    const pans = event.shiftKey || event.button === 1 || event.pointerType === "touch";
    if (event.pointerType !== "touch") this.canvas.setPointerCapture(event.pointerId);
    this.drag = { pans, x: event.offsetX, from: this.from, to: this.to, moved: false };
  }

  follow(event) {
    const { drag } = this;
    if (!drag) return this.hover(this.under(event), event);
    drag.moved ||= Math.abs(event.offsetX - drag.x) > NEAR;
    if (!drag.moved) return;
    if (drag.pans) {
      const by = (drag.x - event.offsetX) / this.scale;
      this.move(drag.from + by, drag.to + by);
    } else {
      const ends = [this.time(drag.x), this.time(event.offsetX)].sort((a, b) => a - b);
      this.select(-1, [Math.max(0, ends[0]), Math.min(this.spans.length, ends[1])]);
    }
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (drag && !drag.moved) this.select(this.under(event), null);
  }

  under(event) {
    if (event.offsetX < this.left || event.offsetY > this.bottom) return -1;
    return this.spans.at(this.rowAt(event.offsetY), this.time(event.offsetX), NEAR / this.scale);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      w: () => this.zoom(1 / CLOSER), s: () => this.zoom(CLOSER),
      a: () => this.pan(-STEP), d: () => this.pan(STEP),
      ArrowLeft: () => this.beside(-1), ArrowRight: () => this.beside(1),
      ArrowUp: () => this.across(-1), ArrowDown: () => this.across(1),
      Enter: () => this.toCause(), f: () => this.focusOn(this.selected),
      c: () => this.toggle(), 0: () => this.move(0, this.spans.length),
      Home: () => this.move(0, this.spans.length), Escape: () => this.select(-1, null),
      "+": () => this.zoom(1 / CLOSER), "-": () => this.zoom(CLOSER),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  beside(by) {
    const { spans, selected } = this;
    const next = selected < 0 ? this.visible(0) : selected + by;
    if (next >= 0 && next < spans.count && (selected < 0 || spans.row[next] === spans.row[selected]))
      this.choose(next);
  }

  across(by) {
    const { spans, selected } = this;
    if (selected < 0) return this.choose(this.visible(0));
    const middle = (spans.start[selected] + spans.end[selected]) / 2;
    for (let row = spans.row[selected] + by; row >= 0 && row < spans.rows.length; row += by) {
      const next = Math.min(Math.max(spans.after(row, middle) - 1, spans.first[row]), spans.first[row + 1] - 1);
      if (next >= spans.first[row]) return this.choose(next);
    }
  }

  visible(row) { return Math.min(this.spans.reaching(row, this.from), this.spans.count - 1); }

  toCause() {
    const cause = this.selected < 0 ? -1 : this.spans.spans.cause[this.selected];
    if (cause >= 0) this.choose(cause);
  }

  choose(i) {
    if (i < 0) return;
    this.select(i, null);
    this.reveal(i);
  }

  toggle() {
    if (!this.spans.chain.length) return;
    this.chain = !this.chain;
    this.chainButton.ariaPressed = String(this.chain);
    this.later();
  }

  hover(i, event) {
    this.tip.hidden = i < 0;
    if (i >= 0) {
      if (i !== this.hovered) this.tip.replaceChildren(...this.described(i));
      const { frame, tip } = this, y = frame.offsetTop - frame.scrollTop + event.offsetY;
      tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, this.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${y + 18}px`;
    }
    if (i !== this.hovered) this.later();
    this.hovered = i;
  }

  select(i, range) {
    [this.selected, this.range] = [i, range];
    if (range) this.said.replaceChildren(...this.sums(range));
    else if (i >= 0) this.said.replaceChildren(...this.described(i));
    else this.said.replaceChildren(this.texts.hint);
    this.later();
  }

  // --- words ---

  described(i) {
    const { spans, texts } = this, of = spans.spans;
    const seconds = of.duration[i] / 1e12, [, label] = spans.rows[spans.row[i]];
    const facts = [
      `${spans.kinds[of.kind[i]].label} · ${label}`,
      filled(texts.times, { start: timeText(spans.start[i]), duration: timeText(of.duration[i]) }),
    ];
    if (of.bytes[i]) facts.push(amount(of.bytes[i], "B") + (seconds ? `, ${amount(of.bytes[i] / seconds, "B/s")}` : ""));
    if (of.flops[i]) facts.push(amount(of.flops[i], "FLOP") + (seconds ? `, ${amount(of.flops[i] / seconds, "FLOP/s")}` : ""));
    const parts = [make("b", "", spans.names[of.name[i]]), ...facts.map((text) => make("div", "", text))];
    if (of.line[i]) parts.push(make("div", "", filled(texts.line, { line: spans.lines[of.line[i]] })));
    const cause = of.cause[i];
    if (cause >= 0) {
      const words = { name: spans.names[of.name[cause]], row: spans.rows[spans.row[cause]][1] };
      const gap = (of.why[i] === AWAITED ? spans.end[i] : spans.start[i]) - spans.end[cause];
      const ago = gap > 0 ? filled(texts.gap, { gap: timeText(gap) }) : "";
      parts.push(make("div", "", filled(texts.why[of.why[i]], words) + ago));
    }
    return parts;
  }

  sums([from, to]) {
    const { spans, texts } = this, length = Math.max(1, to - from);
    const words = { length: timeText(to - from), from: timeText(from), to: timeText(to) };
    const table = make("table"), head = make("tr"), columns = Object.entries(texts.sums);
    for (const title of [texts.device, ...columns.map(([, title]) => title), texts.idle])
      head.append(make("th", "", title));
    table.append(head);
    const all = new Set(columns.flatMap(([kinds]) => kinds.split(" ")));
    for (const { kind } of spans.kinds) if (kind !== "wait") all.add(kind);
    let idle = 0, gpus = 0;
    // Each thread of a host, as these work side by side; a device with all its streams.
    const places = spans.rows.map(([device, label], row) => (device === "host" ? [label, [row]]
      : [device, spans.rows.flatMap(([other], at) => (other === device ? [at] : []))]));
    for (const [name, rows] of new Map(places)) {
      const line = make("tr");
      line.append(make("th", "", name));
      const free = length - spans.busy(rows, all, from, to);
      for (const [kinds] of columns)
        line.append(cell(spans.busy(rows, new Set(kinds.split(" ")), from, to), length));
      line.append(cell(free, length));
      table.append(line);
      if (spans.rows[rows[0]][0] !== "host") [idle, gpus] = [idle + free / length, gpus + 1];
    }
    const parts = [make("b", "", filled(texts.range, words)), table];
    if (gpus) parts.push(make("div", "", filled(texts.bubble, { part: percent(idle / gpus) })));
    return parts;
  }

  // --- paint ---

  later() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => ((this.due = false), this.draw()));
  }

  draw() {
    const { paint, spans } = this, { color } = getComputedStyle(this.root);
    this.ink = color;
    paint.clearRect(0, 0, this.width, this.height);
    this.drawAxis();
    paint.save();
    paint.beginPath();
    paint.rect(this.left, 0, this.width - this.left - 8, this.height);
    paint.clip();
    for (let row = 0; row < spans.rows.length; ++row) this.drawRow(row);
    if (this.chain) this.drawChain();
    if (this.range) this.drawRange();
    for (const i of new Set([this.hovered, this.selected])) if (i >= 0) this.mark(i);
    this.drawCause();
    if (spans.memory.length) this.drawMemory();
    paint.restore();
    this.drawLabels();
    if (this.canvas.matches(":focus-visible")) {
      [paint.strokeStyle, paint.lineWidth] = [this.ink, 2];
      paint.strokeRect(1, 1, this.width - 2, this.height - 2);
    }
  }

  drawAxis() {
    const { paint } = this, length = this.to - this.from;
    const about = (length * 90) / (this.width - this.left), size = 10 ** Math.floor(Math.log10(about));
    const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= about);
    const [unit, name] = UNITS.find(([size]) => this.to >= size) ?? UNITS[3];
    const digits = Math.max(0, Math.ceil(Math.log10(unit / step)));
    Object.assign(paint, { font: SMALL, textAlign: "center", textBaseline: "top", lineWidth: 1 });
    for (let time = Math.ceil(this.from / step) * step; time <= this.to; time += step) {
      const x = Math.round(this.x(time)) + 0.5;
      [paint.strokeStyle, paint.globalAlpha] = [this.ink, 0.15];
      line(paint, x, 0, x, this.height - (this.spans.memory.length ? 0 : AXIS));
      [paint.fillStyle, paint.globalAlpha] = [this.ink, 1];
      const text = `${(time / unit).toFixed(digits)} ${name}`, half = paint.measureText(text).width / 2;
      if (x + half < this.width && x - half > this.left - 20) paint.fillText(text, x, this.bottom + 6);
    }
  }

  drawRow(row) {
    const { paint, spans } = this, { kind, name } = spans.spans, top = row * ROW + (ROW - BAR) / 2;
    const last = spans.after(row, this.to), scale = this.scale, offset = this.left - this.from * scale;
    Object.assign(paint, { font: SMALL, textAlign: "left", textBaseline: "middle" });
    let from = 0, to = -1, which = -1; // slivers that touch are painted as one
    const painted = () => {
      if (which < 0) return;
      paint.fillStyle = spans.kinds[which].color;
      paint.fillRect(from, top, to - from, BAR);
      which = -1;
    };
    for (let i = spans.reaching(row, this.from); i < last; ++i) {
      const x = Math.max(spans.start[i] * scale + offset, this.left - 1);
      const right = Math.min(spans.end[i] * scale + offset, this.width), wide = right - x;
      if (wide < THIN && kind[i] === which && x - to < GAPLESS) {
        to = Math.max(to, right);
        continue;
      }
      painted();
      if (wide < THIN) {
        [from, to, which] = [x, Math.max(right, x + THINNEST), kind[i]];
        continue;
      }
      const { color, dark } = spans.kinds[kind[i]];
      paint.fillStyle = color;
      paint.fillRect(x, top, wide - THINNEST, BAR);
      if (wide > NAMED && this.widthOf(name[i]) < wide - 6) {
        paint.fillStyle = dark ? "#fff" : "#222";
        paint.fillText(spans.names[name[i]], x + 3, top + BAR / 2 + 0.5);
      }
    }
    painted();
  }

  widthOf(name) {
    let width = this.widths.get(name);
    if (width === undefined)
      this.widths.set(name, (width = this.paint.measureText(this.spans.names[name]).width));
    return width;
  }

  drawChain() {
    const { paint } = this;
    paint.beginPath();
    for (const [row, start, end] of this.spans.chain) {
      const y = row * ROW + (ROW + BAR) / 2;
      paint.lineTo(this.x(start), y);
      paint.lineTo(this.x(end), y);
    }
    Object.assign(paint, { strokeStyle: CHAIN, lineWidth: 2.5, lineJoin: "round" });
    paint.stroke();
  }

  drawRange() {
    const { paint } = this, [x, right] = this.range.map((time) => this.x(time));
    [paint.fillStyle, paint.globalAlpha] = [this.ink, 0.15];
    paint.fillRect(x, 0, right - x, this.height);
    paint.globalAlpha = 1;
  }

  mark(i) {
    const { paint, spans } = this, x = this.x(spans.start[i]);
    Object.assign(paint, { strokeStyle: this.ink, lineWidth: 2 });
    const wide = Math.max(this.x(spans.end[i]) - x, 2);
    paint.strokeRect(x - 1, spans.row[i] * ROW + (ROW - BAR) / 2 - 1, wide + 2, BAR + 2);
  }

  drawCause() {
    const { paint, spans } = this, i = this.hovered >= 0 ? this.hovered : this.selected;
    const cause = i < 0 ? -1 : spans.spans.cause[i];
    if (cause < 0) return;
    const x = this.x(spans.end[cause]), y = (spans.row[cause] + 0.5) * ROW;
    const right = this.x(spans.spans.why[i] === AWAITED ? spans.end[i] : spans.start[i]);
    const below = (spans.row[i] + 0.5) * ROW;
    Object.assign(paint, { strokeStyle: CHAIN, fillStyle: CHAIN, lineWidth: 1.5 });
    line(paint, x, y, right, below);
    const angle = Math.atan2(below - y, right - x);
    if (Math.hypot(below - y, right - x) > 4) {
      paint.beginPath();
      for (const turn of [0, 2.7, -2.7])
        paint.lineTo(right + (turn && 8) * Math.cos(angle + turn), below + (turn && 8) * Math.sin(angle + turn));
      paint.fill();
    }
  }

  drawMemory() {
    const { paint, spans } = this, top = this.bottom + AXIS + GAP, height = MEMORY - 4;
    const most = Math.max(1, ...spans.memory.map(({ bytes }) => bytes.reduce((a, b) => Math.max(a, b), 0)));
    spans.memory.forEach(({ times, bytes, color }) => {
      paint.beginPath();
      let y = 0, lastX = -1;
      const begin = Math.max(0, bisect(times, this.from, 0, times.length, true) - 1);
      const end = bisect(times, this.to, 0, times.length, true);
      for (let i = begin; i < end; ++i) {
        const x = Math.max(this.x(times[i]), this.left);
        const next = top + height * (1 - bytes[i] / most);
        if (i === begin) paint.moveTo(x, (y = next));
        if (x - lastX < 0.5 && Math.abs(next - y) < 0.5) continue;
        paint.lineTo(x, y);
        paint.lineTo(x, next);
        [y, lastX] = [next, x];
      }
      paint.lineTo(this.width, y);
      Object.assign(paint, { strokeStyle: color, lineWidth: 1.5 });
      paint.stroke();
    });
    this.most = most;
  }

  drawLabels() {
    const { paint, spans } = this;
    Object.assign(paint, { font: FONT, textAlign: "left", textBaseline: "middle", fillStyle: this.ink });
    const room = this.left - PAD - 8;
    spans.rows.forEach(([, label], row) => paint.fillText(label, PAD, (row + 0.5) * ROW, room));
    if (!spans.memory.length) return;
    const top = this.bottom + AXIS + GAP;
    paint.font = SMALL;
    paint.fillText(filled(this.texts.memory, { most: amount(this.most, "B") }), PAD, top + 6, room);
    spans.memory.slice(0, 4).forEach(({ device, color }, i) => {
      paint.fillStyle = color;
      paint.fillRect(PAD, top + 18 + 13 * i, 8, 8);
      paint.fillStyle = this.ink;
      paint.fillText(device, PAD + 12, top + 22 + 13 * i, room - 12);
    });
  }

  remove() {
    this.resize.disconnect();
    this.root.remove();
  }
}

function line(paint, x, y, right, below) {
  paint.beginPath();
  paint.moveTo(x, y);
  paint.lineTo(right, below);
  paint.stroke();
}

function cell(sum, length) {
  return make("td", "", sum > 0 ? `${timeText(sum, 3)} (${percent(sum / length)})` : "–");
}

function make(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}

export async function show(element, packed) {
  return new View(element, new Spans(await unpack(packed)));
}

export default {
  async render({ model, el }) {
    const view = await show(el, model.get("packed"));
    return () => view.remove();
  },
};
