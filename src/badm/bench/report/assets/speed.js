// Speed at equal quality: a table over all tasks, and the part of the budget on each of them.

const NEVER_AT = 2; // budgets, where a point for never is drawn

function addSpeed() {
  if (!comparison.speed) return;
  $("speed").hidden = false;
  $("speed-lead").textContent = view.speed.lead;
  const { columns, lines } = view.speed.table;
  $("speed-table").replaceChildren(make("table", { "aria-label": "Methods over all tasks" },
    make("thead", {}, make("tr", {}, ["method", ...columns.map((column) => column.title)].map((title) =>
      make("th", { class: "plain", scope: "col" }, title)))),
    make("tbody", {}, lines.map((line) => bodyRow(line, [NAME, ...columns])))));
  $("speed-hints").replaceChildren(...pairs(columns.map((column) => [column.title, column.hint])));
  addChart($("speed-chart"), describeSpeed);
}

function describeSpeed() {
  const known = comparison.speed.rows.filter((row) => row.status !== "missing");
  const methods = methodNames.filter((method) => known.some((row) => row.method === method));
  if (!methods.length) return null;
  const shown = methods.filter((method) => !state.hidden.has(method));
  const tasks = comparison.tasks.map((one) => one.name);
  const parts = [1, 2, 3, 4, 5, 6, 7, 8].map((eighth) => eighth / 8);
  return {
    label: `Part of the budget of ${comparison.speed.baseline} that ${shown.length} methods need`,
    methods,
    traces: shown.map((method) => speedTrace(method, known, tasks)),
    layout: {
      uirevision: "speed",
      xaxis: { title: `part of the budget of ${comparison.speed.baseline}`, type: "log",
        range: [Math.log10(0.11), Math.log10(2.4)],
        tickvals: [...parts, NEVER_AT], ticktext: [...parts.map(fraction), "never"] },
      yaxis: { tickvals: tasks.map((_, i) => i), ticktext: tasks, range: [tasks.length - 0.5, -0.5] },
    },
    table: () => ({
      heads: ["task", ...shown],
      rows: tasks.map((name) => [name, ...shown.map((method) => {
        const row = comparison.speed.rows.find((one) => one.task === name && one.method === method);
        return !row || row.status === "missing" ? "missing" : row.part === null ? "never" : fraction(row.part);
      })]),
    }),
  };
}

function fraction(part) {
  const eighths = Math.round(8 * part);
  const shared = [8, 4, 2, 1].find((divisor) => eighths % divisor === 0);
  return shared === 8 ? String(eighths / 8) : `${eighths / shared}/${8 / shared}`;
}

function speedTrace(method, known, tasks) {
  const own = known.filter((row) => row.method === method);
  const shift = 0.6 * ((methodNames.indexOf(method) + 0.5) / methodNames.length - 0.5);
  const lines = own.map((row) => [method, row.task,
    row.part === null ? "never reaches the target" : `${fraction(row.part)} of the budget, ${number(row.steps)} steps`]);
  const trace = lineTrace(method, own.map((row) => row.part ?? NEVER_AT),
    own.map((row) => tasks.indexOf(row.task) + shift), lines);
  return { ...trace, mode: "markers", marker: { ...trace.marker, maxdisplayed: 0, size: 11 } };
}
