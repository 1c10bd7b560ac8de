// The numbers of the page as files, made in the browser: no server is involved.

function save(name, type, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// JSON has null for the infinity of a miss; in a table it would look like a value that was not measured.
function csv() {
  const metrics = ["test", "validation", "train_loss", "steps_to_target", "gradients_to_target", "seconds_to_target"];
  const single = ["seconds_per_step", "peak_bytes", "state_bytes", "trials", "diverged", "paper"];
  const tests = [["compared", ""], ["rival", "rival_"], ["steps_compared", "steps_"], ["steps_rival", "steps_rival_"]];
  const heads = ["task", "method", "status", "message", "seeds", "setting",
    ...metrics.flatMap((name) => [name, `${name}_low`, `${name}_high`]),
    ...tests.flatMap(([, prefix]) => ["compared_against", "difference", "p_value"].map((name) => prefix + name)),
    ...single];
  const infinite = (name, interval, end) => interval === null ? ""
    : interval[end] ?? (name.endsWith("_to_target") ? "inf" : "");
  const rows = comparison.rows.map((row) => [
    row.task, row.method, row.status, row.message, row.seeds.join(" "), JSON.stringify(row.setting),
    ...metrics.flatMap((name) => ["value", "low", "high"].map((end) => infinite(name, row[name], end))),
    ...tests.flatMap(([name]) => [row[name]?.against, row[name]?.difference, row[name]?.p_value]),
    ...single.map((name) => row[name]),
  ]);
  return [heads, ...rows].map((cells) => cells.map(csvCell).join(",")).join("\r\n") + "\r\n";
}

function csvCell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function addDownloads() {
  $("download-csv").addEventListener("click", () => save("comparison.csv", "text/csv", csv()));
  $("download-json").addEventListener("click", () =>
    save("comparison.json", "application/json", JSON.stringify(comparison)));
}
