"use strict";
// The state of the page, and what changes it: the controls, and in `proxrl watch` the runs.

const SECONDS_BETWEEN_POLLS = 2;
// Details requested at once, so that the first of many runs are shown before the last have arrived.
const RUNS_AT_ONCE = 20;
// With more cards than this they are smaller, so that the curves are not far down the page.
const MANY_CARDS = 6;
const RETURN = "charts/episodic_return";
const ALL_METRICS = "*";
// In small charts below the selected metric, as far as they are logged.
const KEY_METRICS = [
  "charts/success_rate", "charts/episodic_length", "losses/explained_variance", "losses/entropy", "losses/approx_kl",
  "losses/clipfrac", "losses/value_loss", "charts/SPS",
];

const find = (id) => document.getElementById(id);
const embedded = find("data");
const state = { data: null, details: new Map(), charts: {}, hidden: new Set(), labels: [], shown: {} };

/** Replaces the content of an element if `key` has changed, so that selections and videos survive. Returns whether it did. */
function fill(id, key, make) {
  const text = JSON.stringify(key);
  if (state.shown[id] === text) return false;
  state.shown[id] = text;
  const made = make();
  find(id).replaceChildren(...(Array.isArray(made) ? made : made ? [made] : []));
  return true;
}

/** Does the same for the options of a select, and keeps the selected option. */
function fillChoice(id, key, make) {
  const select = find(id), selected = select.value;
  if (fill(id, key, make) && [...select.options].some((option) => option.value === selected)) select.value = selected;
}

function render() {
  const runs = state.data.runs, empty = element("p", { class: "empty" }, "No runs yet. They appear here automatically.");
  const running = runs.filter((run) => run.state === "running").length;
  if (state.data.live) document.title = running ? `${running} running - ProxRL` : "ProxRL";
  fill("overview", runs.map(({ curves, settings, videos, ...head }) => head), () => {
    const cards = overviewCards(runs), box = element("div", { class: cards.length > MANY_CARDS ? "groups many" : "groups" });
    box.append(...(cards.length ? cards : [empty]));
    const problems = state.data.unreadable.map(({ path, problem }) => `${path} can't be read: ${problem}`);
    return [box, ...problems.map((text) => element("p", { class: "problem" }, text))];
  });
  for (const id of ["curves", "runs", "details"]) find(id).hidden = !runs.length;
  if (!runs.length) return;
  find("runs-table").replaceChildren(runsTable(runs, lastChange));
  const versions = runs.map((run) => [run.id, run.version]);
  fill("evaluation-body", versions, () => evaluationElements(runs));
  find("evaluation").hidden = !find("evaluation-body").children.length;
  fill("published-body", [versions, state.data.published], () => publishedElements(state.data));
  find("published").hidden = !find("published-body").children.length;
  fill("differences-table", versions, () => differencesTable(runs));
  find("differences").hidden = !find("differences-table").children.length;
  renderMetrics(runs);
  const drawn = JSON.stringify(versions);
  if (state.drawn !== drawn) {
    // Running seeds are rarely at the same step, and their mean ends with the shortest, so each seed is shown as well.
    if (state.drawn === undefined) {
      find("seeds").checked = runs.some((run) => run.state === "running");
      find("key-metrics").checked = groupsOf(runs).size === 1; // with several environments there would be too many
    }
    state.drawn = drawn;
    renderCharts();
  }
  renderDetails();
}

function lastChange(run) {
  if (run.updated === null) return "–";
  if (state.data.live) return `${formatTime(Math.max(0, Math.round(Date.now() / 1000 - run.updated)))} ago`;
  return new Date(run.updated * 1000).toISOString().slice(0, 16).replace("T", " ");
}

/** Lists the return first, then all other metrics, grouped by the part of their name before the slash. */
function renderMetrics(runs) {
  const logged = new Set(runs.flatMap((run) => Object.keys(run.curves.metrics)));
  const names = [...logged].filter((name) => name !== RETURN).sort();
  fillChoice("metric", [...logged], () => {
    const groups = new Map();
    for (const name of names) {
      const [head] = name.split("/");
      if (!groups.has(head)) groups.set(head, element("optgroup", { label: head }));
      groups.get(head).append(element("option", { value: name }, name.slice(head.length + 1).replaceAll("_", " ")));
    }
    const all = element("option", { value: ALL_METRICS }, "all (small charts)");
    return [element("option", { value: RETURN }, "return"), all, ...groups.values()];
  });
  state.metrics = [RETURN, ...names];
}

function renderCharts() {
  const chosen = find("metric").value || RETURN, by = document.querySelector("input[name=by]:checked").value;
  const smoothing = Number(find("smoothing").value), seeds = find("seeds").checked, groups = groupsOf(state.data.runs);
  const all = chosen === ALL_METRICS, options = { by, smoothing, seeds, hidden: state.hidden, confidence: state.data.confidence };
  find("smoothing-value").textContent = smoothing ? `${(smoothing * 100).toFixed(1)}%` : "none";
  find("seeds-control").hidden = !hasSeeds(groups);
  find("key-metrics-control").hidden = all;
  const keys = all || !find("key-metrics").checked ? [] : KEY_METRICS.filter((metric) => metric !== chosen);
  const shown = showCharts("charts", groups, all ? state.metrics : [chosen], all, options);
  find("charts").className = `charts ${all ? "small" : shown > 1 ? "several" : ""}`;
  showCharts("key-charts", groups, keys, true, options);
  find("curves-note").textContent = curvesNote();
}

/** Shows a chart for each environment and metric in an element, and returns how many they are. Small charts need data. */
function showCharts(id, groups, metrics, small, options) {
  const { by } = options, before = state.charts[id] || new Map(), wanted = new Map();
  for (const [env, names] of groups) {
    for (const metric of metrics) {
      const key = JSON.stringify([env, small ? metric : ""]);
      const lines = [...names].map(([label, runs]) => ({
        label, color: colorOf(state.labels, label), key: [metric, by, runs.map((run) => run.version)],
        curves: runs.map((run) => curveOf(run, metric, by)).filter((curve) => curve.x.length),
      }));
      if (small && !lines.some((line) => line.curves.length)) continue;
      const chart = before.get(key) || new Chart(small, toggle);
      const title = groups.size > 1 ? `${env} · ${readable(metric)}` : readable(metric);
      chart.title(title, by === "step" ? "over steps" : "over time");
      wanted.set(key, chart);
      chart.latest = [lines, options];
    }
  }
  const same = wanted.size === before.size && [...wanted].every(([key, chart]) => before.get(key) === chart);
  state.charts[id] = wanted;
  if (!same) find(id).replaceChildren(...[...wanted.values()].map((chart) => chart.root));
  for (const chart of wanted.values()) chart.show(...chart.latest);
  return wanted.size;
}

function hasSeeds(groups) {
  return [...groups.values()].some((names) => [...names.values()].some((runs) => runs.length > 1));
}

function readable(metric) {
  return metric === RETURN ? "return" : metric.split("/").slice(-1)[0].replaceAll("_", " ");
}

function curvesNote() {
  const runs = state.data.runs, lines = Math.max(...runs.map((run) => run.curves.lines));
  const parts = ["Drag to zoom, double-click to reset the zoom, click a name to hide it."];
  const percent = Math.round(state.data.confidence * 100), points = state.data.points.toLocaleString("en");
  if (hasSeeds(groupsOf(runs))) {
    parts.push(`Lines are means over seeds, up to the end of the shortest run; bands are ${percent}% bootstrap intervals.`);
  }
  parts.push("Smoothing: each point is the mean over the given share of the run before it.");
  if (lines > state.data.points) {
    const logged = `${lines.toLocaleString("en")} logged iterations`;
    parts.push(`Up to ${logged} are reduced to ${points} points, each the mean of several.`);
  }
  return parts.join(" ");
}

function toggle(label) {
  if (!state.hidden.delete(label)) state.hidden.add(label);
  renderCharts();
}

function renderDetails() {
  const runs = state.data.runs;
  const options = () => runs.map((run) => element("option", { value: run.id }, runName(run)));
  fillChoice("run", runs.map((run) => [run.id, run.label]), options);
  find("choose").hidden = runs.length < 2;
  const run = runs.find((candidate) => candidate.id === find("run").value) || runs[0];
  fill("video", [run.id, run.videos.map(({ name, size }) => [name, size])], () => videoElements(run));
  fill("repeat", [run.id, run.command], () => repeatElements(run));
  const filter = find("filter").value, changed = find("changed").checked;
  fill("settings", [run.id, run.settings, filter, changed], () => settingsTable(run, state.data.about, filter, changed));
  fill("system", [run.id, run.machine, run.git, run.versions, run.host], () => systemTable(run));
}

class ServerGone extends Error {}

/** Returns the JSON at a path of the server, or null if there is none. */
async function requestJson(path) {
  try {
    const response = await fetch(path);
    return response.ok ? await response.json() : null;
  } catch {
    throw new ServerGone();
  }
}

/** Requests the current data, and the details of the runs that have changed. */
async function poll() {
  try {
    const data = await requestJson("/data.json");
    if (!data) throw new ServerGone();
    const changed = data.runs.filter((run) => state.details.get(run.id)?.version !== run.version);
    do {
      await Promise.all(changed.splice(0, RUNS_AT_ONCE).map(async (run) => {
        const details = await requestJson(`/run/${run.id}.json`);
        if (details) state.details.set(run.id, details);
      }));
      const loaded = data.runs.filter((run) => state.details.has(run.id));
      state.data = { ...data, runs: loaded.map((run) => ({ ...run, ...state.details.get(run.id), version: run.version })) };
      state.lastUpdate = new Date();
      notice("live", "Live");
      render();
    } while (changed.length);
  } catch (error) {
    if (!(error instanceof ServerGone)) {
      notice("gone", "This page could not be drawn. Trying again.");
      throw error;
    }
    const update = state.lastUpdate ? `Last update ${state.lastUpdate.toLocaleTimeString()}` : "No update yet";
    notice("gone", `The server has stopped. ${update}. Trying again.`);
  } finally {
    setTimeout(poll, SECONDS_BETWEEN_POLLS * 1000);
  }
}

function notice(kind, text) {
  const box = find("notice");
  box.className = kind;
  if (box.textContent !== text) box.textContent = text;
}

function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("proxrl-theme", theme); } catch { /* pages from disk may have no local storage */ }
}

function start() {
  let theme = null;
  try { theme = localStorage.getItem("proxrl-theme"); } catch { /* as above */ }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  find("theme").addEventListener("click", () => {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark");
    chooseTheme(dark ? "light" : "dark");
  });
  for (const id of ["controls", "settings-controls"]) find(id).addEventListener("submit", (event) => event.preventDefault());
  find("controls").addEventListener("input", renderCharts);
  find("settings-controls").addEventListener("input", renderDetails);
  find("run").addEventListener("change", renderDetails);
  if (!embedded) {
    poll();
    return;
  }
  state.data = JSON.parse(embedded.textContent);
  render();
  const made = new Date(state.data.made * 1000).toISOString().slice(0, 16).replace("T", " ");
  find("foot").textContent = `Written ${made} UTC by ProxRL ${state.data.proxrl}.`;
}

start();
