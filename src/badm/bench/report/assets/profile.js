// The performance profile: over all tasks, and so the same whichever task is chosen.

function addProfile() {
  if (!comparison.profile) return;
  $("profile").hidden = false;
  addChart($("profile-chart"), describeProfile);
}

function describeProfile() {
  const { taus, solved } = comparison.profile;
  const methods = methodNames.filter((method) => solved[method]);
  if (!methods.length || !taus.length) return null;
  const shown = methods.filter((method) => !state.hidden.has(method));
  const ordered = [...shown].sort((a, b) => isBadm(a) - isBadm(b));
  const last = taus[taus.length - 1];
  return {
    label: `Share of tasks solved by ${shown.length} methods, against the steps of the fastest`,
    methods,
    traces: ordered.map((method) => profileTrace(method, taus, solved[method])),
    layout: {
      uirevision: "profile",
      xaxis: { title: "τ, times the steps of the fastest method", type: "log",
        tickvals: [1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000].filter((tau) => tau <= last) },
      yaxis: { title: "tasks solved", range: [-3, 103], ticksuffix: " %" },
    },
    table: () => ({
      heads: ["τ", ...shown],
      rows: taus.map((tau, i) => [number(tau), ...shown.map((method) => partText(solved[method][i]))]),
    }),
  };
}

// A part of some tens of tasks has no more digits than this.
const partText = (part) => percent(Number(part.toFixed(3)));

function profileTrace(method, taus, parts) {
  const lines = taus.map((tau, i) => [method, `${partText(parts[i])} of the tasks`, `within ${number(tau)} times the steps`]);
  const trace = lineTrace(method, taus, parts.map((part) => 100 * part), lines);
  // Markers where the line rises: along the level parts they would lie on those of others.
  const rises = parts.map((part, i) => i === 0 || part !== parts[i - 1]);
  const marker = { ...trace.marker, maxdisplayed: 0, size: rises.map((rise) => rise ? 8 : 0) };
  return { ...trace, marker, line: { ...trace.line, shape: "hv" } };
}
