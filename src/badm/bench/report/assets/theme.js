// Light and dark, and the colour, dash and marker of each method.

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

function isDark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : prefersDark.matches;
}

// A property such as --line holds light-dark(…); only a used colour is resolved by the browser.
function cssColour(property) {
  const probe = document.body.appendChild(make("i", { style: `color: var(${property})` }));
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function styleOf(method) {
  const style = view.styles[method];
  return { ...style, colour: isDark() ? style.dark : style.light };
}

function faded(hex, opacity) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

const MARKER_PATHS = {
  circle: "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
  square: "M-3.2 -3.2h6.4v6.4h-6.4z",
  diamond: "M0 -4.6L4.6 0L0 4.6L-4.6 0z",
  "triangle-up": "M0 -4.4L4.4 3.4H-4.4z",
  "triangle-down": "M0 4.4L4.4 -3.4H-4.4z",
  cross: "M-1.4 -4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
  x: "M-1.4 -4.2h2.8v2.8h2.8v2.8h-2.8v2.8h-2.8v-2.8h-2.8v-2.8h2.8z",
};

// The key of a method: a piece of its line. The colour follows the theme without a redraw.
function swatch(method) {
  const style = view.styles[method];
  if (!style) return null;
  return makeSvg("svg", {
    class: "swatch", viewBox: "-17 -7 34 14", "aria-hidden": "true",
    style: `color: light-dark(${style.light}, ${style.dark})`,
  },
    makeSvg("path", {
      d: "M-17 0H17", stroke: "currentColor", "stroke-width": style.width,
      "stroke-dasharray": style.dash.join(" ") || null,
    }),
    makeSvg("path", {
      d: MARKER_PATHS[style.marker], fill: "currentColor",
      transform: style.marker === "x" ? "rotate(45)" : null,
    }));
}

function themeButton(redraw) {
  const button = $("theme");
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    redraw();
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  prefersDark.addEventListener("change", show);
  addEventListener("beforeprint", () => { printing = true; redraw(); });
  addEventListener("afterprint", () => { printing = false; redraw(); });
  show();
}
