/**
 * What JupyterLab and ipywidgets leave out for screen readers: the alternative text of a picture,
 * which stands in its output's metadata or in the drawing itself, and the name of a slider, which
 * stands beside it. And what they take from those who use no mouse: the keys that move a slider or
 * choose from a list. And text that is wider than its cell goes on between words, not within one.
 *
 * Written by hand as the container that a bundler would make, so nothing needs to be built.
 */
(() => {
  const NAME = 'd2lpar-names';
  const PICTURE = 'image/png';
  const DRAWING = 'image/svg+xml';
  const CONTROLS = ['select', 'input', 'button', '.noUi-handle', '.widget-readout']
    .map(control => `.jupyter-widgets ${control}`)
    .join();
  const WRAP = 
    'body .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }';
  let shared;
  let ids = 0;

  const idOf = node => (node.id ||= `${NAME}-${++ids}`);

  /** What matplotlib notes beside the outlines of its letters: labels and legend, not the ticks. */
  function wordsIn(drawing) {
    const notes = [...drawing.matchAll(/<!-- (.+?) -->/g)].map(([, note]) => note);
    const words = notes.filter(note => /\p{Letter}/u.test(note) && !note.startsWith('$'));
    return words.length ? `Figure of ${[...new Set(words)].join(', ')}` : '';
  }

  /** The factory of a kind of picture, whose renderers write the alternative text as well. */
  function describing(factory, type) {
    return {
      ...factory,
      createRenderer: options => {
        const renderer = factory.createRenderer(options);
        const renderModel = renderer.renderModel.bind(renderer);
        renderer.renderModel = async model => {
          await renderModel(model);
          const alt = model.metadata[type]?.alt ?? (type === DRAWING && wordsIn(model.data[type]));
          const image = renderer.node.querySelector('img');
          if (image && alt) {
            image.alt = alt;
          }
        };
        return renderer;
      }
    };
  }

  /** Ties a slider's handle to the label beside it, and to the readout that says its value. */
  function nameHandle(handle) {
    const slider = handle.closest('.jupyter-widgets');
    const label = slider?.querySelector('.widget-label');
    const readout = slider?.querySelector('.widget-readout');
    if (label) {
      handle.setAttribute('aria-labelledby', idOf(label));
    }
    if (readout) {
      handle.setAttribute('aria-describedby', idOf(readout));
    }
    if (label && readout?.isContentEditable) {
      readout.setAttribute('role', 'textbox');
      readout.setAttribute('aria-labelledby', idOf(label));
    }
  }

  /** Leaves a control its keys: JupyterLab would take arrows to another cell, and X to cut one. */
  function freeKeys(control) {
    control.setAttribute('data-lm-suppress-shortcuts', 'true');
  }

  function mendControls(node) {
    if (node instanceof Element) {
      node.querySelectorAll('.noUi-handle').forEach(nameHandle);
      node.querySelectorAll(CONTROLS).forEach(freeKeys);
    }
  }

  function addStyle(rules) {
    const style = document.createElement('style');
    style.textContent = rules;
    document.head.append(style);
  }

  const pluginWith = IRenderMimeRegistry => ({
    id: `${NAME}:plugin`,
    description: 'Names pictures and sliders, lets keys move controls, wraps text between words.',
    autoStart: true,
    requires: [IRenderMimeRegistry],
    activate: (_, registry) => {
      addStyle(WRAP);
      for (const type of [PICTURE, DRAWING]) {
        registry.addFactory(describing(registry.getFactory(type), type));
      }
      new MutationObserver(changes => {
        changes.forEach(change => change.addedNodes.forEach(mendControls));
      }).observe(document.body, { childList: true, subtree: true });
    }
  });

  /** A module that JupyterLab shares with its extensions. */
  async function theirs(name) {
    const versions = Object.values(shared[name]);
    return (await (versions.find(version => version.loaded) ?? versions[0]).get())();
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: scope => {
      shared = scope;
    },
    get: async () => {
      const { IRenderMimeRegistry } = await theirs('@jupyterlab/rendermime');
      const module = { __esModule: true, default: pluginWith(IRenderMimeRegistry) };
      return () => module;
    }
  };
})();
