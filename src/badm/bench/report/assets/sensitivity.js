// The score of every trial against its learning rate.

function addSensitivity() {
  const chart = addChart($("sensitivity-chart"), describeSensitivity);
  return () => { $("sensitivity").hidden = !trialsByMethod().length; return chart; };
}

// Methods with trials at two learning rates at least: one alone says nothing of sensitivity.
function trialsByMethod() {
  const trials = ofTask(comparison.tried).filter((trial) => trial.setting.lr > 0);
  return methodNames
    .map((method) => ({ method, trials: trials.filter((trial) => trial.method === method) }))
    .filter(({ trials: own }) => new Set(own.map((trial) => trial.setting.lr)).size > 1);
}

// Where other settings were searched too, a learning rate is as good as its best trial.
function bestByRate(trials) {
  const best = new Map();
  for (const trial of trials.filter((one) => Number.isFinite(one.score))) {
    const known = best.get(trial.setting.lr);
    if (!known || better(trial.score, known.score)) best.set(trial.setting.lr, trial);
  }
  return [...best.values()].sort((a, b) => a.setting.lr - b.setting.lr);
}

function chosen(method, trials) {
  const row = ofTask(comparison.rows).find((one) => one.method === method);
  return trials.find((trial) => trial.setting.lr === row?.setting.lr)
    ?? trials.reduce((best, trial) => !best || better(trial.score, best.score) ? trial : best, null);
}

function describeSensitivity() {
  const all = trialsByMethod();
  if (!all.length) return null;
  const shown = all.filter(({ method }) => !state.hidden.has(method));
  const ordered = [...shown].sort((a, b) => isBadm(a.method) - isBadm(b.method));
  const { score, percent: isPercent } = task();
  return {
    label: `Validation ${score} of ${shown.length} methods on ${state.task} against the learning rate`,
    methods: all.map(({ method }) => method),
    traces: ordered.flatMap(({ method, trials }) => sensitivityTraces(method, trials)),
    layout: {
      uirevision: state.task,
      xaxis: { title: "learning rate", type: "log", dtick: 1 },
      yaxis: { title: `validation ${score}`, ticksuffix: isPercent ? " %" : "" },
      // For trials that have no score: crosses at the bad end of the figure.
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    },
    table: () => sensitivityTable(shown),
  };
}

function sensitivityTraces(method, trials) {
  const { score, percent: isPercent, best } = task();
  const [show, scale] = isPercent ? [percent, 100] : [number, 1];
  const rates = bestByRate(trials);
  const marked = chosen(method, rates);
  const { colour } = styleOf(method);
  const lines = rates.map((trial) => [
    method, `lr ${number(trial.setting.lr)}`, `${score} ${show(trial.score)}`,
    ...(trial === marked ? ["chosen"] : []),
  ]);
  const lost = trials.filter((trial) => !Number.isFinite(trial.score));
  const traces = [lineTrace(method, rates.map((trial) => trial.setting.lr),
    rates.map((trial) => scale * trial.score), lines)];
  traces[0].marker.maxdisplayed = 0; // every trial has its marker
  if (marked) traces.push({
    x: [marked.setting.lr], y: [scale * marked.score], mode: "markers", name: `${method} chosen`, meta: method,
    marker: { symbol: "circle-open", size: 15, color: colour, line: { width: 2 } },
  });
  if (lost.length) traces.push({
    x: lost.map((trial) => trial.setting.lr), y: lost.map(() => best === "high" ? 0.02 : 0.98),
    yaxis: "y2", mode: "markers", name: `${method} without a score`, meta: method,
    marker: { symbol: "x-thin", size: 8, line: { width: 2, color: colour } },
    lines: lost.map((trial) => [method, `lr ${number(trial.setting.lr)}`, view.words[trial.status] || "no score"]),
  });
  return traces;
}

function sensitivityTable(shown) {
  const { percent: isPercent } = task();
  const show = isPercent ? percent : number;
  return {
    heads: ["method", "lr", "score"],
    rows: shown.flatMap(({ method, trials }) =>
      [...trials].sort((a, b) => a.setting.lr - b.setting.lr).map((trial) => [
        method, number(trial.setting.lr),
        Number.isFinite(trial.score) ? show(trial.score) : view.words[trial.status] || "no score",
      ])),
  };
}
