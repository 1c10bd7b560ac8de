// Settings, trials and methods as tables that are built when they are opened.

function addSettings() {
  const textCell = (text) => make("td", { class: "text" }, text);
  const name = (method) => make("div", { class: "name" }, swatch(method), method);
  const settings = lazyDetails($("settings"), () => plainTable(
    ["method", "setting", "searched", "seeds"],
    ofTask(comparison.rows).map((row) => [
      name(row.method),
      textCell(view.tasks[state.task].settings[row.method] || "–"),
      textCell(row.searched.join(", ") || "–"),
      row.seeds.join(", ") || "–",
    ]), "Settings used"));
  const trials = lazyDetails($("trials"), () => plainTable(
    ["method", "trial", "setting", "validation score", "steps to target"],
    ofTask(comparison.tried).map((trial, i) => [
      name(trial.method),
      number(trial.index),
      textCell(view.tasks[state.task].trials[i].setting),
      view.tasks[state.task].trials[i].score ?? (view.words[trial.status] || "–"),
      // A miss is infinite, for which JSON has null.
      task().target === null || trial.status !== "finished" ? "–"
        : trial.steps_to_target === null ? "never" : number(trial.steps_to_target),
    ]), "Search trials"));
  lazyDetails($("methods"), () => plainTable(
    ["method", "family", "description"],
    comparison.methods.map((method) => [name(method.name), method.family, textCell(method.description)]),
    "Methods"));
  return () => {
    $("trials").hidden = !ofTask(comparison.tried).length;
    settings();
    trials();
  };
}
