// The runs of one method: for one metric the mean over seeds and the range of the seeds.

// What can be drawn of the current task: the score first, then other metrics, then losses.
function metricChoices() {
  const curves = ofTask(comparison.curves);
  const names = (pick) => [...new Set(curves.flatMap((curve) => Object.keys(pick(curve))))];
  const score = task().score;
  const metrics = names((curve) => curve.validation).sort((a, b) => (b === score) - (a === score));
  const players = names((curve) => curve.losses);
  return [
    ...metrics.map((name) => ({ value: `validation:${name}`, label: `validation ${name}` })),
    ...players.map((name) => ({
      value: `losses:${name}`,
      label: players.length > 1 ? `training loss of the ${name}` : "training loss",
    })),
  ];
}

function metricOf(value) {
  const [kind, ...rest] = value.split(":");
  const name = rest.join(":");
  const isScore = kind === "validation" && name === task().score;
  return { kind, name, isScore, percent: isScore && task().percent };
}

function readings(curve, metric) {
  const trained = metric.kind === "losses";
  const steps = trained ? curve.steps : curve.evaluated;
  const seconds = trained ? curve.seconds : curve.evaluated_seconds;
  const values = curve[metric.kind][metric.name] ?? [];
  const found = new Map();
  values.forEach((value, i) => {
    if (Number.isFinite(value)) found.set(steps[i], { value, seconds: seconds[i] });
  });
  return found;
}

// Only steps that every seed has: where one seed diverged, a mean of the others would flatter.
function seriesOf(method, metric) {
  const seeds = ofTask(comparison.curves)
    .filter((curve) => curve.method === method)
    .map((curve) => readings(curve, metric));
  if (!seeds.length) return null;
  const steps = [...seeds[0].keys()].filter((step) => seeds.every((seed) => seed.has(step)));
  if (!steps.length) return null;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const values = steps.map((step) => seeds.map((seed) => seed.get(step).value));
  return {
    method, steps,
    seeds: seeds.length,
    seconds: steps.map((step) => mean(seeds.map((seed) => seed.get(step).seconds))),
    mean: values.map(mean),
    low: values.map((list) => Math.min(...list)),
    high: values.map((list) => Math.max(...list)),
  };
}
