"use strict";
// The sections of the page: functions that turn the data into elements. Text is only inserted as text, never as HTML.

const COLORS = 8;
const STATES = ["running", "finished", "stopped", "failed"];
const EVALUATION_NOTE =
  "Deterministic: the most likely action. Stochastic: sampled actions, as in training. Return: mean ± standard deviation over " +
  "episodes. Each dot is an episode; the bar is their mean.";
const PUBLISHED_NOTE =
  "ProxRL: mean return of the last 100 training episodes, ± the standard deviation over seeds if there are several. " +
  "The other rows are as published by their authors, after the steps in the table. Compare only rows with equal steps, and " +
  "be careful with few seeds.";

function element(name, attributes = {}, text = null) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

/** Cells are text, elements or null. The columns with an index in `numeric` are right-aligned. */
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

/** Returns environment → label → runs, so that runs that differ only in the seed are together. */
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

/** Returns the CSS classes of a label: equal in all charts, and stable when labels are added. After eight, colors repeat, dashed. */
function colorOf(labels, label) {
  if (!labels.includes(label)) labels.push(label);
  const index = labels.indexOf(label);
  return `c${index % COLORS}${index >= COLORS ? " dashed" : ""}`;
}

function runName(run) {
  return `${run.env} · ${run.label} · seed ${run.seed ?? "?"}`;
}

function stepsText(done, planned) {
  return formatShort(done) + (done < planned ? ` of ${formatShort(planned)}` : "");
}

/** Returns a card for each environment and name, with its progress and main numbers. */
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
      const returns = numbersIn(members.map((run) => run.mean_return));
      const spread = returns.length > 1 ? meanAndDeviation(returns).deviation : null;
      const numbers = element("dl", { class: "numbers" });
      const each = members.length > 1 ? ` (mean of ${members.length} seeds)` : "";
      for (const [name, value, note] of [
        ["return", formatSpread(meanOf(returns), spread), `of the last 100 training episodes${each}`],
        ["best", formatNumber(meanOf(members.map((run) => run.best_return))), `highest mean return of training so far${each}`],
        ...successPairs(members, each),
        ["steps", stepsText(steps / members.length, planned / members.length), `agent steps${each}`],
        ["time", formatTime(meanOf(members.map((run) => run.seconds))), `spent training${each}`],
        ["steps/s", formatNumber(meanOf(members.map((run) => run.steps_per_second)), 3), `of the last session${each}`],
        ...leftPairs(members),
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

/** Returns the mean success rate of runs as an entry of a card; nothing if their environment does not tell successes. */
function successPairs(runs, each) {
  const rates = numbersIn(runs.map((run) => run.success_rate));
  return rates.length ? [["success", formatPercent(meanOf(rates)), `share of successes in the last 100 training episodes${each}`]] : [];
}

/** Returns the seconds that a running run still needs at its present speed, or null. */
function secondsLeft(run) {
  const steps = run.planned_steps - run.step;
  return run.state === "running" && run.planned_steps && run.steps_per_second ? Math.max(0, steps / run.steps_per_second) : null;
}

/** Returns the time until the last of the running runs is done, as an entry of a card; nothing if none is running. */
function leftPairs(runs) {
  const left = numbersIn(runs.map(secondsLeft));
  return left.length ? [["time left", formatTime(Math.max(...left)), "until all of these runs are done, at their present speed"]] : [];
}

function runsTable(runs, age) {
  const running = runs.some((run) => secondsLeft(run) !== null), told = numbersIn(runs.map((run) => run.success_rate)).length > 0;
  const rows = runs.map((run) => [
    run.env, run.label, String(run.seed ?? "–"), badge(run.state), run.step.toLocaleString("en"),
    formatNumber(run.mean_return), formatNumber(run.best_return), ...(told ? [formatPercent(run.success_rate)] : []),
    formatNumber(run.steps_per_second, 3), formatTime(run.seconds), ...(running ? [formatTime(secondsLeft(run))] : []), age(run),
  ]);
  const numbers = ["Return", "Best", ...(told ? ["Success"] : []), "Steps/s", "Time", ...(running ? ["Time left"] : [])];
  const headings = ["Environment", "Name", "Seed", "State", "Step", ...numbers, "Last change"];
  return table(headings, rows, [2, 4, ...numbers.map((_, index) => 5 + index)]);
}

/** Draws a dot for each episode. All strips of an environment have the same scale. */
function dotStrip(returns, low, high) {
  const width = 220, height = 26, svg = svgElement("svg", { class: "strip", viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute("aria-label", `returns of ${returns.length} episodes from ${formatNumber(low)} to ${formatNumber(high)}`);
  const toX = (value) => (high > low ? 6 + ((value - low) / (high - low)) * (width - 12) : width / 2);
  svgElement("line", { x1: 6, x2: width - 6, y1: height / 2, y2: height / 2 }, svg);
  const dotsAt = new Map();
  for (const value of returns) {
    const x = Math.round(toX(value) / 4) * 4, before = dotsAt.get(x) || 0;
    dotsAt.set(x, before + 1);
    const y = height / 2 + (before % 2 ? 1 : -1) * Math.min(Math.ceil(before / 2) * 3, 9);
    const dot = svgElement("circle", { cx: toX(value).toFixed(1), cy: y, r: 3.2 }, svg);
    svgElement("title", {}, dot).textContent = formatNumber(value, 6);
  }
  const mean = toX(meanAndDeviation(returns).mean);
  svgElement("line", { class: "mean", x1: mean, x2: mean, y1: 1, y2: height - 1 }, svg);
  return svg;
}

/** Returns an entry for each checkpoint and kind of evaluation. */
function scoresOf(run) {
  return Object.entries(run.evaluations || {}).flatMap(([checkpoint, saved]) =>
    ["deterministic", "stochastic"].filter((kind) => saved[kind]).map((kind) => ({
      ...saved[kind], kind, run, old: saved.step !== run.step,
      checkpoint: `${checkpoint}, step ${Number(saved.step).toLocaleString("en")}`,
    })));
}

function evaluationElements(runs) {
  const parts = [];
  for (const [env, names] of groupsOf(runs)) {
    const scores = [...names.values()].flat().flatMap(scoresOf);
    if (!scores.length) continue;
    const all = scores.flatMap((score) => score.returns || []), low = Math.min(...all), high = Math.max(...all);
    const told = numbersIn(scores.map((score) => score.success_rate)).length > 0;
    const rows = scores.map((score) => [
      `${score.run.label} · seed ${score.run.seed ?? "?"}`, score.kind, formatSpread(score.mean, score.std),
      formatNumber(score.min), formatNumber(score.max), ...(told ? [formatPercent(score.success_rate)] : []), String(score.episodes),
      score.returns ? dotStrip(score.returns, low, high) : null, score.checkpoint + (score.old ? " (not the last)" : ""),
    ]);
    const box = element("div", { class: "scroll" });
    const scale = `${formatNumber(low)} to ${formatNumber(high)}`;
    const headings = ["Run", "Actions", "Return", "Min", "Max", ...(told ? ["Success"] : []), "Episodes", scale, "Checkpoint"];
    box.append(table(headings, rows, [2, 3, 4, 5, ...(told ? [6] : [])]));
    parts.push(element("h3", {}, env), box);
  }
  if (parts.length) parts.push(element("p", { class: "note" }, EVALUATION_NOTE));
  return parts;
}

function publishedElements(data) {
  const parts = [];
  for (const [env, names] of groupsOf(data.runs)) {
    const theirs = data.published[env] || [];
    if (!theirs.length) continue;
    const ours = [...names].map(([label, runs]) => {
      const returns = numbersIn(runs.map((run) => run.mean_return)), steps = Math.min(...runs.map((run) => run.step));
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
