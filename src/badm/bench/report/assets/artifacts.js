// Samples and predictions of trained models: images and texts, methods side by side.

function drawArtifacts() {
  const all = ofTask(comparison.artifacts);
  $("artifacts").hidden = !all.length;
  if (!all.length) return;
  const unique = (key) => [...new Set(all.map((artifact) => artifact[key]))].sort((a, b) => a - b);
  const [steps, seeds] = [unique("step"), unique("seed")];
  // All steps if there are several: readers want to see how the models change.
  const chosen = { step: steps.length > 1 ? "all" : String(steps[0]), seed: String(seeds[0]) };
  const show = () => {
    const own = all.filter((one) => String(one.seed) === chosen.seed);
    $("artifacts-body").replaceChildren(...(chosen.step === "all" ? timelines(own, steps)
      : galleries(own.filter((one) => String(one.step) === chosen.step))));
  };
  const field = (name, choices) => {
    const select = make("select", { onchange: () => { chosen[name] = select.value; show(); } });
    options(select, choices, chosen[name]);
    return make("label", { class: "field" }, name, " ", select);
  };
  const each = (values) => values.map((value) => ({ value: String(value), label: number(value) }));
  $("artifacts-controls").replaceChildren(
    ...(steps.length > 1 ? [field("step", [{ value: "all", label: "all, over training" }, ...each(steps)])] : []),
    ...(seeds.length > 1 ? [field("seed", each(seeds))] : []));
  show();
}

const titlesOf = (artifacts) => [...new Set(artifacts.map((artifact) => artifact.title))];

function galleries(artifacts) {
  if (!artifacts.length) return [make("p", { class: "empty" }, "Nothing was kept at this step.")];
  return titlesOf(artifacts).flatMap((title) => {
    const own = artifacts.filter((artifact) => artifact.title === title)
      .sort((a, b) => methodNames.indexOf(a.method) - methodNames.indexOf(b.method));
    const texts = own.every((artifact) => !artifact.picture);
    return [make("h3", {}, title),
      make("div", { class: texts ? "gallery texts" : "gallery" }, own.map(artifactFigure))];
  });
}

// A column for each method, a row for each step, the first at the top.
function timelines(artifacts, steps) {
  return titlesOf(artifacts).flatMap((title) => {
    const own = artifacts.filter((artifact) => artifact.title === title);
    const methods = methodNames.filter((name) => own.some((artifact) => artifact.method === name));
    const cell = (step, method) => {
      const found = own.find((artifact) => artifact.step === step && artifact.method === method);
      return make("td", {}, found ? artifactParts(found) : "–");
    };
    return [make("h3", {}, title),
      make("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": `${title}, over training` },
        make("table", { class: "timeline" },
          make("thead", {}, make("tr", {}, make("th", { class: "plain", scope: "col" }, "step"),
            methods.map((name) => make("th", { class: "plain", scope: "col" }, swatch(name), name)))),
          make("tbody", {}, steps.map((step) => make("tr", {},
            make("th", { scope: "row" }, number(step)), methods.map((name) => cell(step, name)))))))];
  });
}

function artifactFigure(artifact) {
  return make("figure", {}, make("figcaption", {}, swatch(artifact.method), artifact.method),
    artifactParts(artifact));
}

function artifactParts(artifact) {
  const parts = [];
  if (artifact.picture.startsWith("data:image/png;base64,")) {
    const image = make("img", {
      src: artifact.picture, alt: `${artifact.title}, ${artifact.method}, step ${number(artifact.step)}`,
    });
    // Small images are enlarged, and readers want to see their pixels.
    image.addEventListener("load", () => {
      if (image.naturalWidth < 200) image.style.imageRendering = "pixelated";
    });
    parts.push(image);
  }
  if (artifact.text) parts.push(make("pre", {}, artifact.text));
  return parts;
}
