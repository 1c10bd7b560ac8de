// The results table: sorted by the button of a column, what did not finish always at the end.

const NAME = { key: "method", title: "method", first: "low", outcome: false };

function drawTable() {
  const table = view.tables[state.task];
  const columns = [NAME, ...table.columns];
  // A table of another task may lack the column.
  const sort = columns.some((column) => column.key === state.sort?.key) ? state.sort : null;
  const head = make("tr", {}, columns.map((column) => headCell(column, sort)));
  const body = sorted(table.lines, sort).map((line) => bodyRow(line, columns));
  const caption = `Results on ${state.task}`;
  $("table").replaceChildren(make("table", { "aria-label": caption },
    make("thead", {}, head), make("tbody", {}, body)));
  $("table-note").textContent = table.note;
  $("hints").replaceChildren(...pairs(table.columns.map((column) => [column.title, column.hint])));
}

function headCell(column, sort) {
  const active = sort?.key === column.key;
  const direction = active ? (sort.ascending ? "ascending" : "descending") : "none";
  return make("th", { scope: "col", "aria-sort": direction },
    make("button", {
      type: "button", title: column.hint, "data-key": column.key,
      onclick: () => sortBy(column, active ? !sort.ascending : column.first === "low"),
    }, column.title));
}

function sortBy(column, ascending) {
  state.sort = { key: column.key, ascending };
  drawTable();
  // The button that was pressed has been replaced by its like.
  $("table").querySelector(`button[data-key="${column.key}"]`).focus({ preventScroll: true });
}

function sorted(lines, sort) {
  if (!sort) return lines;
  const order = (line) => sort.key === NAME.key ? line.method : line.cells[sort.key].order;
  const sign = sort.ascending ? 1 : -1;
  const group = (line) => line.status !== "finished" ? 2 : order(line) === null ? 1 : 0;
  const compare = (a, b) => a < b ? -sign : a > b ? sign : 0;
  return [...lines].sort((a, b) => group(a) - group(b)
    || (group(a) === 0 ? compare(order(a), order(b)) : 0));
}

function bodyRow(line, columns) {
  const row = make("tr", { "data-method": line.method, "data-status": line.status },
    make("th", { scope: "row" }, make("div", { class: "name" }, swatch(line.method),
      make("span", {}, line.method))));
  const outcomes = columns.filter((column) => column.outcome).length;
  let said = false;
  for (const column of columns.slice(1)) {
    if (column.outcome && line.status !== "finished") {
      if (!said) row.append(words(line, outcomes));
      said = true;
    } else {
      row.append(cell(line, column));
    }
  }
  return row;
}

function words(line, columns) {
  return make("td", { class: "words", colspan: columns },
    make("div", {}, make("b", {}, line.instead), line.message ? `: ${line.message}` : ""));
}

function cell(line, column) {
  const { text, note, best, warning } = line.cells[column.key];
  if (!text) return make("td", { class: "none" }, "–");
  const kind = best ? "best" : text === "never" ? "never" : null;
  const parts = [
    make("span", { class: kind }, text),
    note ? make("span", { class: warning ? "note warning" : "note" }, note) : null,
  ];
  if (column.key !== "test") return make("td", {}, parts);
  return make("td", {}, make("div", { class: "scored" }, whisker(line.method), parts));
}

// The interval as a picture, all rows of a table on one scale; hollow where it is off the scale.
function whisker(method) {
  const rows = ofTask(comparison.rows).filter((row) => row.status === "finished" && Number.isFinite(row.test?.value));
  const { test } = rows.find((row) => row.method === method) ?? {};
  // The best three quarters make the scale: one bad row would press all others into a corner.
  const good = rows.sort((a, b) => better(a.test.value, b.test.value) ? -1 : 1)
    .slice(0, Math.ceil(0.75 * rows.length));
  const ends = good.flatMap((row) => [row.test.low, row.test.high, row.test.value])
    .filter(Number.isFinite);
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  if (!test || !(most > least)) return null;
  const at = (value) => 3 + 58 * Math.max(0, Math.min(1, (value - least) / (most - least)));
  const outside = test.value < least || test.value > most;
  const style = view.styles[method];
  return makeSvg("svg", {
    class: "whisker", viewBox: "0 0 64 16", "aria-hidden": "true",
    style: style ? `color: light-dark(${style.light}, ${style.dark})` : null,
  },
    makeSvg("path", { d: "M3 8H61", stroke: "var(--line)" }),
    Number.isFinite(test.low) && Number.isFinite(test.high)
      ? makeSvg("path", { d: `M${at(test.low)} 8H${at(test.high)}`, stroke: "currentColor", "stroke-width": 5, "stroke-opacity": 0.35 })
      : null,
    makeSvg("circle", { cx: at(test.value), cy: 8, r: 3, stroke: "currentColor", "stroke-width": 1.4, fill: outside ? "var(--raised)" : "currentColor" }));
}
