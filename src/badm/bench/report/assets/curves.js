// Training curves: a metric over steps or seconds.

function addCurves() {
  const chart = addChart($("curves-chart"), describeCurves);
  $("metric").addEventListener("change", (event) => {
    chooseMetric(event.target.value);
    drawChart(chart);
  });
  $("band").checked = state.band;
  $("band").addEventListener("change", (event) => {
    state.band = event.target.checked;
    drawChart(chart);
  });
  const axis = (id, key, choices) => () => segments($(id), key, choices(), state[key], (value) => {
    state[key] = value;
    drawChart(chart);
  });
  const drawX = axis("x-axis", "x", () => [
    { value: "steps", label: "steps" }, { value: "seconds", label: "seconds" },
  ]);
  const drawY = axis("y-axis", "y", () => [
    { value: "close", label: "zoom" },
    { value: "linear", label: "linear" },
    { value: "log", label: "logarithmic", disabled: !allPositive() },
  ]);

  // Losses fall by orders of magnitude; scores crowd where they end.
  function chooseMetric(value) {
    state.metric = value;
    state.y = value?.startsWith("losses:") && allPositive() ? "log" : "close";
    drawX();
    drawY();
  }

  return () => {
    const choices = metricChoices();
    const kept = choices.some(({ value }) => value === state.metric);
    chooseMetric(kept ? state.metric : choices[0]?.value ?? null);
    options($("metric"), choices, state.metric);
  };
}

function allSeries() {
  if (state.metric === null) return [];
  const metric = metricOf(state.metric);
  return methodNames.map((method) => seriesOf(method, metric)).filter(Boolean);
}

function allPositive() {
  return allSeries().every((series) => series.low.every((value) => value > 0));
}

function describeCurves() {
  const all = allSeries();
  if (!all.length) return null;
  const shown = all.filter((series) => !state.hidden.has(series.method));
  // BADM last, that is on top.
  const ordered = [...shown].sort((a, b) => isBadm(a.method) - isBadm(b.method));
  const metric = metricOf(state.metric);
  const scale = metric.percent ? 100 : 1;
  const name = metricChoices().find(({ value }) => value === state.metric).label;
  const bands = state.band ? ordered.filter((series) => series.seeds > 1) : [];
  return {
    label: `${name} of ${shown.length} methods on ${state.task}, over ${state.x}`,
    methods: all.map((series) => series.method),
    traces: [
      ...bands.map((series) => bandTrace(series, scale)),
      ...ordered.map((series) => curveTrace(series, metric, scale)),
    ],
    layout: {
      xaxis: { title: state.x === "steps" ? "steps" : "seconds of training", rangemode: "tozero" },
      yaxis: {
        title: name, type: state.y === "log" ? "log" : "linear", ticksuffix: metric.percent ? " %" : "",
        ...(state.y === "close" ? { range: closeUp(shown, metric, scale) } : {}),
      },
      uirevision: [state.task, state.metric, state.x, state.y].join(" "),
      ...targetLine(metric, scale),
    },
    table: () => curvesTable(shown, metric),
  };
}

// The values of the last three quarters of a run, but for the worst tenth of them.
function closeUp(shown, metric, scale) {
  const values = shown.flatMap(({ mean }) => mean.slice(Math.floor(mean.length / 4))).sort((a, b) => a - b);
  if (metric.isScore && task().target !== null) values.push(task().target);
  const cut = Math.floor(values.length / 10);
  const high = !metric.isScore || task().best === "low" ? values[values.length - 1 - cut] : Math.max(...values);
  const low = metric.isScore && task().best === "high" ? values[cut] : Math.min(...values);
  const margin = 0.06 * (high - low || Math.abs(high) || 1);
  return [scale * (low - margin), scale * (high + margin)];
}

function curveTrace(series, metric, scale) {
  const show = metric.percent ? percent : number;
  const lines = series.steps.map((step, i) => [
    series.method,
    `step ${number(step)}, ${number(series.seconds[i])} s`,
    `${metric.name} ${show(series.mean[i])}`,
    ...(series.seeds > 1 ? [`seeds ${show(series.low[i])} to ${show(series.high[i])}`] : []),
  ]);
  return lineTrace(series.method, series[state.x], series.mean.map((y) => scale * y), lines);
}

function bandTrace(series, scale) {
  const x = series[state.x];
  return {
    x: [...x, ...[...x].reverse()],
    y: [...series.high, ...[...series.low].reverse()].map((y) => scale * y),
    mode: "lines", line: { width: 0 }, fill: "toself", name: `${series.method} band`, meta: series.method,
    fillcolor: faded(styleOf(series.method).colour, isBadm(series.method) ? 0.16 : 0.09),
  };
}

function targetLine(metric, scale) {
  const target = task().target;
  if (!metric.isScore || target === null || (state.y === "log" && target <= 0)) return {};
  const y = scale * target;
  const colour = cssColour("--ink");
  return {
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: colour, width: 1, dash: "3px,3px" } }],
    annotations: [{
      // Shapes take values on a logarithmic axis, annotations take their logarithms.
      // At the left, on the good side of the target, where no curve has come yet.
      xref: "paper", x: 0.01, xanchor: "left", y: state.y === "log" ? Math.log10(y) : y,
      yanchor: task().best === "high" ? "bottom" : "top",
      text: inert(`target ${view.tasks[state.task].target}`), showarrow: false, font: { color: colour, size: 12 },
    }],
  };
}

function curvesTable(shown, metric) {
  const show = metric.percent ? percent : number;
  const steps = [...new Set(shown.flatMap((series) => series.steps))].sort((a, b) => a - b);
  const found = shown.map((series) => new Map(series.steps.map((step, i) => [step, series.mean[i]])));
  return {
    heads: ["step", ...shown.map((series) => series.method)],
    rows: steps.map((step) => [number(step), ...found.map((means) =>
      means.has(step) ? show(means.get(step)) : "–")]),
  };
}
