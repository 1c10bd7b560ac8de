// The page from top to bottom.

function drawHead() {
  $("title").textContent = comparison.title;
  $("created").textContent = comparison.created ? `, ${comparison.created.slice(0, 10)}` : "";
  $("summary").replaceChildren(...comparison.summary.map((sentence) => make("p", {}, sentence)));
  $("facts").replaceChildren(...factList(view.facts));
  $("environment").replaceChildren(...pairs(view.environment));
  $("repeat").hidden = !view.study;
  $("study").textContent = view.study;
  $("notes").hidden = !comparison.notes.length;
  $("notes-list").replaceChildren(...comparison.notes.map((note) => make("li", {}, note)));
}

function factList(list) {
  return list.map(([name, value]) => make("div", {},
    make("dt", {}, name),
    make("dd", {}, name === "data" && value !== "real"
      ? make("span", { class: "synthetic" }, value) : value)));
}

function addTasks(draw) {
  const names = comparison.tasks.map((one) => one.name);
  $("tasks").hidden = names.length < 2;
  options($("task"), names.map((name) => ({ value: name, label: name })), state.task);
  $("task").addEventListener("change", (event) => {
    state.task = event.target.value;
    draw();
  });
}

function drawTaskHead() {
  const { name, description, notes } = task();
  const names = comparison.tasks.map((one) => one.name);
  $("position").textContent = `${names.indexOf(name) + 1} of ${names.length}`;
  $("results-heading").textContent = `Results on ${name}`;
  $("description").textContent = description;
  $("task-facts").replaceChildren(...factList(view.tasks[name].facts));
  $("task-notes").replaceChildren(...notes.map((note) => make("li", {}, note)));
}

function start() {
  drawHead();
  addDownloads();
  if (state.task === null) {
    document.querySelector("main").prepend(make("p", { class: "empty" }, "This comparison has no task."));
    $("results").hidden = $("curves").hidden = true;
    return;
  }
  const prepareCurves = addCurves();
  addProfile();
  addSpeed();
  const prepareSensitivity = addSensitivity();
  const drawSettings = addSettings();
  const drawTask = () => {
    drawTaskHead();
    drawTable();
    prepareCurves();
    prepareSensitivity();
    drawArtifacts();
    drawSettings();
    drawCharts();
  };
  addTasks(drawTask);
  drawTask();
  themeButton(drawCharts);
}

start();
