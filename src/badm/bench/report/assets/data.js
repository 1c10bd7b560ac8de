// The comparison, what to say about it, and what the reader has chosen to see.

const { comparison, view } = JSON.parse($("data").textContent);

const state = {
  task: comparison.tasks.length ? comparison.tasks[0].name : null,
  hidden: new Set(), // methods, in all figures
  sort: null, // {key, ascending}; null is the order of rank
  metric: null,
  x: "steps",
  y: "linear",
  band: comparison.methods.length <= 8, // more bands are a fog
};

const methodNames = comparison.methods.map((method) => method.name);
const task = () => comparison.tasks.find((one) => one.name === state.task);
const better = (a, b) => task().best === "high" ? a > b : a < b;
const ofTask = (list) => list.filter((one) => one.task === state.task);

// As exact as the page has it; thousands are set apart in whole numbers only.
function number(value) {
  if (value === null || value === undefined) return "none";
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(6)));
}

const percent = (value) => `${number(100 * value)} %`;
const isBadm = (name) => comparison.methods.some((m) => m.name === name && m.family === "badm");
