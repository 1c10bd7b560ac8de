// What the tasks show of trained models: pictures and texts, methods side by side.

function drawExhibits() {
  const all = ofTask(comparison.exhibits);
  $("exhibits").hidden = !all.length;
  if (!all.length) return;
  const unique = (key) => [...new Set(all.map((exhibit) => exhibit[key]))].sort((a, b) => a - b);
  const [steps, seeds] = [unique("step"), unique("seed")];
  const chosen = { step: steps[steps.length - 1], seed: seeds[0] };
  const show = () => $("exhibits-body").replaceChildren(...galleries(
    all.filter((one) => one.step === chosen.step && one.seed === chosen.seed)));
  const field = (name, values) => {
    const select = make("select", { onchange: () => { chosen[name] = Number(select.value); show(); } });
    options(select, values.map((value) => ({ value, label: number(value) })), chosen[name]);
    return make("label", { class: "field" }, name, " ", select);
  };
  $("exhibits-controls").replaceChildren(
    ...(steps.length > 1 ? [field("step", steps)] : []),
    ...(seeds.length > 1 ? [field("seed", seeds)] : []));
  show();
}

function galleries(exhibits) {
  if (!exhibits.length) return [make("p", { class: "empty" }, "Nothing was kept at this step.")];
  const titles = [...new Set(exhibits.map((exhibit) => exhibit.title))];
  return titles.flatMap((title) => {
    const own = exhibits.filter((exhibit) => exhibit.title === title)
      .sort((a, b) => methodNames.indexOf(a.method) - methodNames.indexOf(b.method));
    const texts = own.every((exhibit) => !exhibit.picture);
    return [make("h3", {}, title),
      make("div", { class: texts ? "gallery texts" : "gallery" }, own.map(exhibitFigure))];
  });
}

function exhibitFigure(exhibit) {
  const caption = make("figcaption", {}, swatch(exhibit.method), exhibit.method);
  const parts = [];
  if (exhibit.picture.startsWith("data:image/png;base64,")) {
    const image = make("img", { src: exhibit.picture, alt: `${exhibit.title}, ${exhibit.method}` });
    // Small pictures are enlarged, and their pixels are what one wants to see.
    image.addEventListener("load", () => {
      if (image.naturalWidth < 200) image.style.imageRendering = "pixelated";
    });
    parts.push(image);
  }
  if (exhibit.text) parts.push(make("pre", {}, exhibit.text));
  return make("figure", {}, caption, parts);
}
