"use strict";
// The sections of the page, each a function from the document to elements. Text only ever enters as text.

const COLOURS = 8;
const STATES = ["running", "finished", "stopped", "failed"];
const EVALUATION_NOTE =
  "Deterministic plays the most likely action, stochastic samples as in training. Mean ± standard deviation over episodes; " +
  "a dot is an episode, the bar their mean.";
const PUBLISHED_NOTE =
  "Ours is the mean return of the last 100 training episodes, ± the standard deviation over seeds where there are several. " +
  "The others are as their authors publish them, after the steps in the table. Compare rows of equal steps only, and a few " +
  "seeds with caution.";

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** Cells are text, elements, or null; columns named in `numeric` are set flush right. */
function table(headings, rows, numeric = []) {
  const made = element("table"), head = element("tr"), body = element("tbody");
  const cell = (kind, content, column) => {
    const box = element(kind, numeric.includes(column) ? { class: "number" } : {});
    box.append(content ?? "–");
    return box;
  };
  headings.forEach((heading, column) => head.append(cell("th", heading, column)));
  for (const row of rows) {
    const line = element("tr");
    row.forEach((content, column) => line.append(cell("td", content, column)));
    body.append(line);
  }
  const top = element("thead");
  top.append(head);
  made.append(top, body);
  return made;
}

function badge(state) {
  return element("span", { class: `badge ${STATES.includes(state) ? state : "new"}` }, state);
}

/** Environment → label → runs: those that differ in the seed alone stand together. */
function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.env)) groups.set(run.env, new Map());
    const names = groups.get(run.env);
    if (!names.has(run.label)) names.set(run.label, []);
    names.get(run.label).push(run);
  }
  return groups;
}

/** A label has the same colour in all charts, and keeps it when others come; beyond the eighth they come again, dashed. */
function colourOf(labels, label) {
  if (!labels.includes(label)) labels.push(label);
  const index = labels.indexOf(label);
  return `c${index % COLOURS}${index >= COLOURS ? " dashed" : ""}`;
}

function known(values) {
  return values.filter((value) => typeof value === "number");
}

function meanOf(values) {
  return known(values).length ? meanAndDeviation(known(values)).mean : null;
}

function runName(run) {
  return `${run.env} · ${run.label} · seed ${run.seed ?? "?"}`;
}

function stepsText(done, planned) {
  return formatShort(done) + (done < planned ? ` of ${formatShort(planned)}` : "");
}

/** One card for each environment and name: how far it is, and the numbers one looks for first. */
function overviewCards(runs) {
  const cards = [];
  for (const [env, names] of groupsOf(runs)) {
    for (const [label, members] of names) {
      const card = element("article", { class: "card group" }), head = element("div", { class: "group-head" });
      const states = [...new Set(members.map((run) => run.state))];
      head.append(element("h1", {}, env), element("span", { class: "name" }, label), ...states.map(badge));
      const steps = members.reduce((sum, run) => sum + run.step, 0);
      const planned = members.reduce((sum, run) => sum + (run.planned_steps || run.step), 0);
      const progress = element("progress", { max: Math.max(planned, 1), value: steps, "aria-label": "progress" });
      const returns = known(members.map((run) => run.mean_return));
      const spread = returns.length > 1 ? meanAndDeviation(returns).deviation : null;
      const numbers = element("dl", { class: "numbers" });
      const each = members.length > 1 ? ` (mean of ${members.length} seeds)` : "";
      for (const [name, value, note] of [
        ["return", formatSpread(meanOf(returns), spread), `of the last 100 training episodes${each}`],
        ["best", formatNumber(meanOf(members.map((run) => run.best_return))), `highest mean return so far${each}`],
        ["steps", stepsText(steps / members.length, planned / members.length), `agent steps${each}`],
        ["time", formatTime(meanOf(members.map((run) => run.seconds))), `spent training${each}`],
        ["steps/s", formatNumber(meanOf(members.map((run) => run.steps_per_second)), 3), `of the last session${each}`],
      ]) {
        const pair = element("div", { title: note });
        pair.append(element("dt", {}, name), element("dd", {}, value));
        numbers.append(pair);
      }
      card.append(head, progress, numbers);
      cards.push(card);
    }
  }
  return cards;
}

function runsTable(runs, age) {
  const rows = runs.map((run) => [
    run.env, run.label, String(run.seed ?? "–"), badge(run.state), run.step.toLocaleString("en"),
    formatNumber(run.mean_return), formatNumber(run.best_return), formatNumber(run.steps_per_second, 3), formatTime(run.seconds),
    age(run),
  ]);
  const headings = ["Environment", "Name", "Seed", "State", "Step", "Return", "Best", "Steps/s", "Time", "Last change"];
  return table(headings, rows, [2, 4, 5, 6, 7, 8]);
}

/** A dot for each episode, on one scale for all strips of an environment. */
function dotStrip(returns, low, high) {
  const width = 220, height = 26, svg = svgElement("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", `returns of ${returns.length} episodes from ${formatNumber(low)} to ${formatNumber(high)}`);
  const place = (value) => (high > low ? 6 + ((value - low) / (high - low)) * (width - 12) : width / 2);
  svgElement("line", { x1: 6, x2: width - 6, y1: height / 2, y2: height / 2 }, svg);
  const beside = new Map();
  for (const value of returns) {
    const x = Math.round(place(value) / 4) * 4, before = beside.get(x) || 0;
    beside.set(x, before + 1);
    const y = height / 2 + (before % 2 ? 1 : -1) * Math.min(Math.ceil(before / 2) * 3, 9);
    const dot = svgElement("circle", { cx: place(value).toFixed(1), cy: y, r: 3.2 }, svg);
    svgElement("title", {}, dot).textContent = formatNumber(value, 6);
  }
  const mean = place(meanAndDeviation(returns).mean);
  svgElement("line", { class: "mean", x1: mean, x2: mean, y1: 1, y2: height - 1 }, svg);
  return svg;
}

/** One entry for each checkpoint and kind of play. */
function scoresOf(run) {
  return Object.entries(run.evaluations || {}).flatMap(([checkpoint, kept]) =>
    ["deterministic", "stochastic"].filter((kind) => kept[kind]).map((kind) => ({
      ...kept[kind], kind, run, old: kept.step !== run.step,
      checkpoint: `${checkpoint}, step ${Number(kept.step).toLocaleString("en")}`,
    })));
}

function evaluationParts(runs) {
  const parts = [];
  for (const [env, names] of groupsOf(runs)) {
    const scores = [...names.values()].flat().flatMap(scoresOf);
    if (!scores.length) continue;
    const all = scores.flatMap((score) => score.returns || []), low = Math.min(...all), high = Math.max(...all);
    const rows = scores.map((score) => [
      `${score.run.label} · seed ${score.run.seed ?? "?"}`, score.kind, formatSpread(score.mean, score.std),
      formatNumber(score.min), formatNumber(score.max), String(score.episodes),
      score.returns ? dotStrip(score.returns, low, high) : null, score.checkpoint + (score.old ? " (not the last)" : ""),
    ]);
    const box = element("div", { class: "scroll" });
    const scale = `${formatNumber(low)} to ${formatNumber(high)}`;
    const headings = ["Run", "Actions", "Return", "Min", "Max", "Episodes", scale, "Checkpoint"];
    box.append(table(headings, rows, [2, 3, 4, 5]));
    parts.push(element("h3", {}, env), box);
  }
  if (parts.length) parts.push(element("p", { class: "note" }, EVALUATION_NOTE));
  return parts;
}

function publishedParts(data) {
  const parts = [];
  for (const [env, names] of groupsOf(data.runs)) {
    const theirs = data.published[env] || [];
    if (!theirs.length) continue;
    const ours = [...names].map(([label, runs]) => {
      const returns = known(runs.map((run) => run.mean_return)), steps = Math.min(...runs.map((run) => run.step));
      const count = `${returns.length} seed${returns.length === 1 ? "" : "s"}`;
      const text = formatSpread(meanOf(returns), returns.length > 1 ? meanAndDeviation(returns).deviation : null, 5);
      return [element("b", {}, `ProxRL, ${label} (${count})`), text, steps.toLocaleString("en")];
    });
    const rows = theirs.map((entry) => [
      entry.implementation, formatSpread(entry.mean, entry.deviation, 5),
      entry.steps === null ? null : entry.steps.toLocaleString("en"),
    ]);
    const box = element("div", { class: "scroll" });
    box.append(table(["Implementation", "Return", "Agent steps"], [...ours, ...rows], [1, 2]));
    parts.push(element("h3", {}, env), box);
  }
  if (parts.length) parts.push(element("p", { class: "note" }, PUBLISHED_NOTE));
  return parts;
}
