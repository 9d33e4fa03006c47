/**
 * Passes over the speaker's notes in a notebook that is presented: jupyterlab-deck 0.2 takes a cell
 * of notes for a slide of its own, on which nothing is shown.
 *
 * Written by hand as the container that a bundler would make, so nothing needs to be built.
 */
(() => {
  const NAME = 'd2lpar-notes';
  const before = new WeakMap(); // of a notebook: the cell that was active last
  let shared;

  const isPresented = () => document.body.dataset.jpDeckMode === 'presenting';
  const isNotes = cell => cell?.model.getMetadata('slideshow')?.slide_type === 'notes';

  /** Goes on in the direction in which the reader has come. */
  function passOver(notebook) {
    const { activeCell, activeCellIndex: index } = notebook;
    const next = index + (index < before.get(notebook) ? -1 : 1);
    before.set(notebook, index);
    if (isPresented() && isNotes(activeCell) && notebook.widgets[next]) {
      notebook.activeCellIndex = next;
    }
  }

  const pluginWith = INotebookTracker => ({
    id: `${NAME}:plugin`,
    description: 'Passes over the speaker’s notes in a notebook that is presented.',
    autoStart: true,
    requires: [INotebookTracker],
    activate: (_, tracker) => {
      tracker.widgetAdded.connect((_, { content }) => content.activeCellChanged.connect(passOver));
    }
  });

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = {
    init: scope => {
      shared = scope;
    },
    get: async () => {
      const versions = Object.values(shared['@jupyterlab/notebook']);
      const found = versions.find(version => version.loaded) ?? versions[0];
      const { INotebookTracker } = (await found.get())();
      const module = { __esModule: true, default: pluginWith(INotebookTracker) };
      return () => module;
    }
  };
})();
