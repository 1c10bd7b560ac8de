// Elements out of data. Text goes in as text nodes only: nothing in a comparison can become markup.

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== ""));
  return element;
}

function pairs(list) {
  return list.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]);
}

// Radio buttons that look like one divided button; the arrow keys work as in every radio group.
function segments(fieldset, name, choices, chosen, choose) {
  const legend = fieldset.querySelector("legend");
  const labels = choices.map(({ value, label, disabled }) =>
    make("label", {},
      make("input", {
        type: "radio", name, value, disabled,
        checked: value === chosen,
        onchange: () => choose(value),
      }),
      label));
  fieldset.replaceChildren(legend, ...labels);
}

function options(select, choices, chosen) {
  select.replaceChildren(...choices.map(({ value, label }) =>
    make("option", { value, selected: value === chosen }, label)));
}

// A table that is only read, for the numbers behind a figure.
function plainTable(heads, rows, label) {
  return make("div", { class: "scroller tall", tabindex: "0", role: "region", "aria-label": label },
    make("table", {},
      make("thead", {}, make("tr", {}, heads.map((head) =>
        make("th", { class: "plain", scope: "col" }, head)))),
      make("tbody", {}, rows.map(([first, ...cells]) =>
        make("tr", {}, make("th", { scope: "row" }, first), cells.map((cell) =>
          cell instanceof Node ? cell : make("td", {}, cell)))))));
}

// Built when it is first opened, and again by `refresh`.
function lazyDetails(details, build) {
  const body = details.lastElementChild;
  const refresh = () => details.open ? body.replaceChildren(build()) : body.replaceChildren();
  details.addEventListener("toggle", refresh);
  return refresh;
}
