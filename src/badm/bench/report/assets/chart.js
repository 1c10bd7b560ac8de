// What every figure has: toggles that are its legend, a plot that the arrow keys read, a table.

const charts = [];
const touch = matchMedia("(pointer: coarse)").matches;
const READ_HINT = touch
  ? "Tap a line to read its values."
  : "Point at a line, or focus the figure and press the arrow keys, to read the values. Drag to zoom, double-click to reset.";

// `describe()` gives {label, methods, traces, layout, table}, or null where there is nothing to
// draw. Traces that can be read have `lines`: for each point the lines of its hover text. A zoom
// lasts as long as `layout.uirevision` stays the same.
function addChart(container, describe) {
  const toggles = make("div", { class: "toggles", role: "group", "aria-label": "Methods" });
  const plot = make("div", { class: "chart", tabindex: "0", role: "application", "aria-roledescription": "chart" });
  const reading = make("p", { class: "reading", role: "status" });
  const empty = make("p", { class: "empty", hidden: true }, "Nothing to draw here.");
  const numbers = make("details", {}, make("summary", {}, "As a table"), make("div"));
  container.append(toggles, plot, reading, empty, numbers);
  const chart = { plot, toggles, reading, empty, numbers, describe, described: null };
  chart.refreshTable = lazyDetails(numbers, () => {
    if (!chart.described) return "";
    const { heads, rows } = chart.described.table();
    return plainTable(heads, rows, chart.described.label);
  });
  readByKeys(chart);
  charts.push(chart);
  return chart;
}

function drawChart(chart) {
  const described = chart.describe();
  chart.described = described;
  for (const part of [chart.plot, chart.toggles, chart.numbers]) part.hidden = !described;
  chart.empty.hidden = Boolean(described);
  chart.reading.textContent = READ_HINT;
  if (!described) return;
  drawToggles(chart, described.methods);
  chart.plot.setAttribute("aria-label", `${described.label}. The arrow keys read the values.`);
  Plotly.react(chart.plot, described.traces.map(withHover), themed(described.layout), {
    displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false,
  });
  chart.refreshTable();
}

function drawCharts() {
  charts.forEach(drawChart);
}

function drawToggles(chart, methods) {
  const focused = chart.toggles.contains(document.activeElement) ? document.activeElement.name : null;
  const boxes = methods.map((method) => make("label", {
    class: "toggle",
    onpointerenter: (event) => event.pointerType === "mouse" && emphasise(chart, method),
    onpointerleave: () => emphasise(chart, null),
    onfocusin: (event) => event.target.matches(":focus-visible") && emphasise(chart, method),
    onfocusout: () => emphasise(chart, null),
  },
    make("input", {
      type: "checkbox", name: method, checked: !state.hidden.has(method),
      onchange: (event) => hide([method], !event.target.checked),
    }),
    swatch(method), method));
  const button = (label, hidden) => make("button", {
    type: "button", name: label, onclick: () => hide(methods, hidden),
  }, label);
  const buttons = [button("Show all", false), button("Hide all", true)];
  if (methods.some(isBadm) && !methods.every(isBadm)) {
    buttons.push(button("Only BADM", (method) => !isBadm(method)));
  }
  chart.toggles.replaceChildren(
    make("div", { class: "toggle-buttons" }, make("span", {}, "Methods"), buttons), ...boxes);
  if (focused !== null) {
    // The one that was used has been replaced by its like.
    [...chart.toggles.querySelectorAll("input, button")]
      .find((one) => one.name === focused)?.focus({ preventScroll: true });
  }
}

// The line whose name is pointed at stands out: among 25 it is hard to find.
function emphasise(chart, method) {
  const traces = chart.plot.data;
  if (!traces?.length) return;
  const found = method !== null && traces.some((trace) => trace.meta === method);
  Plotly.restyle(chart.plot, { opacity: traces.map((trace) => found && trace.meta !== method ? 0.12 : 1) });
}

// In all figures; `hidden` is a value for all of these methods, or a function of one.
function hide(methods, hidden) {
  for (const method of methods) {
    const hiding = typeof hidden === "function" ? hidden(method) : hidden;
    if (hiding) state.hidden.add(method);
    else state.hidden.delete(method);
  }
  drawCharts();
}

// The line of a method, with fewer markers than points.
function lineTrace(method, x, y, lines, more = {}) {
  const style = styleOf(method);
  return {
    x, y, lines, name: method, meta: method, mode: "lines+markers",
    line: { color: style.colour, width: style.width, dash: style.dash.map((part) => `${part}px`).join(",") || "solid" },
    marker: { symbol: style.marker, color: style.colour, size: style.width > 2 ? 8 : 7, maxdisplayed: 9 },
    ...more,
  };
}

// Plotly takes a few tags in texts for markup; here they are texts.
const inert = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

function withHover({ lines, ...trace }) {
  if (!lines) return { hoverinfo: "skip", ...trace };
  const text = lines.map(([first, ...rest]) => [`<b>${inert(first)}</b>`, ...rest.map(inert)].join("<br>"));
  return { ...trace, text, hovertemplate: "%{text}<extra></extra>" };
}

function themed(layout) {
  const [ink, soft, line, raised] = ["--ink", "--soft", "--line", "--raised"].map(cssColour);
  const font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: soft };
  const axis = (given) => ({
    gridcolor: line, linecolor: line, zerolinecolor: line, zeroline: false, ticks: "",
    automargin: true, fixedrange: touch, exponentformat: "e",
    ...given, title: { text: inert(given.title), standoff: 12, font: { ...font, size: 13 } },
  });
  return {
    ...layout, font, showlegend: false, hovermode: "closest", hoverdistance: 30,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 12, b: 8 },
    // A finger that moves over a figure wants to scroll the page.
    dragmode: touch ? false : "zoom",
    hoverlabel: { bgcolor: raised, bordercolor: line, align: "left", font: { ...font, color: ink } },
    xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
  };
}

// Left and right go along a line, up and down to another method.
function readByKeys(chart) {
  let line = 0;
  let point = -1;
  const moves = {
    ArrowRight: () => { point += 1; }, ArrowLeft: () => { point -= 1; },
    Home: () => { point = 0; }, End: () => { point = Infinity; },
    ArrowDown: () => { line += 1; }, ArrowUp: () => { line -= 1; },
  };
  chart.plot.addEventListener("keydown", (event) => {
    const readable = chart.described.traces.map((trace, i) => [trace, i]).filter(([trace]) => trace.lines);
    if (!(event.key in moves) || !readable.length) return;
    event.preventDefault();
    moves[event.key]();
    line = (line + readable.length) % readable.length;
    const [trace, curveNumber] = readable[line];
    point = Math.max(0, Math.min(trace.lines.length - 1, point));
    chart.reading.textContent = trace.lines[point].join(", ");
    Plotly.Fx.hover(chart.plot, [{ curveNumber, pointNumber: point }]);
  });
  chart.plot.addEventListener("blur", () => {
    point = -1;
    chart.reading.textContent = READ_HINT;
    if (chart.described) Plotly.Fx.unhover(chart.plot);
  });
}
