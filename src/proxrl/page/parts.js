"use strict";
// The sections of the page, each a function from the document to elements. Text only ever enters as text.

const COLOURS = 8;

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
  return element("span", { class: `badge ${["running", "finished", "stopped", "failed"].includes(state) ? state : "new"}` }, state);
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

/** A label has the same colour in all charts; beyond the eighth they come again, dashed. */
function colourOf(labels, label) {
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
      head.append(element("h1", {}, env), element("span", { class: "name" }, label), ...[...new Set(members.map((run) => run.state))].map(badge));
      const steps = members.reduce((sum, run) => sum + run.step, 0), planned = members.reduce((sum, run) => sum + (run.planned_steps || run.step), 0);
      const progress = element("progress", { max: Math.max(planned, 1), value: steps, "aria-label": "progress" });
      const returns = known(members.map((run) => run.mean_return)), spread = returns.length > 1 ? ` ± ${formatNumber(meanAndDeviation(returns).deviation, 3)}` : "";
      const numbers = element("dl", { class: "numbers" });
      const each = members.length > 1 ? ` (mean of ${members.length} seeds)` : "";
      for (const [name, value, note] of [
        ["return", formatNumber(meanOf(returns)) + spread, `of the last 100 training episodes${each}`],
        ["best", formatNumber(meanOf(members.map((run) => run.best_return))), `highest mean return so far${each}`],
        ["steps", stepsText(steps / members.length, planned / members.length), `agent steps${each}`],
        ["time", formatTime(meanOf(members.map((run) => run.seconds))), `spent training${each}`],
        ["steps/s", formatNumber(meanOf(members.map((run) => run.steps_per_second)), 3), `whole training, not the environment alone${each}`],
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
    run.env, run.label, String(run.seed ?? "–"), badge(run.state), `${run.step.toLocaleString("en")}`, formatNumber(run.mean_return),
    formatNumber(run.best_return), formatNumber(run.steps_per_second, 3), formatTime(run.seconds), age(run),
  ]);
  return table(["Environment", "Name", "Seed", "State", "Step", "Return", "Best", "Steps/s", "Time", "Last change"], rows, [2, 4, 5, 6, 7, 8]);
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
    svgElement("title", {}, svgElement("circle", { cx: place(value).toFixed(1), cy: y, r: 3.2 }, svg)).textContent = formatNumber(value, 6);
  }
  const mean = place(meanAndDeviation(returns).mean);
  svgElement("line", { class: "mean", x1: mean, x2: mean, y1: 1, y2: height - 1 }, svg);
  return svg;
}

function evaluationParts(runs) {
  const parts = [];
  for (const [env, names] of groupsOf(runs)) {
    const scores = [...names.values()].flat().flatMap((run) => Object.entries(run.evaluations || {}).flatMap(([checkpoint, kept]) =>
      ["deterministic", "stochastic"].filter((kind) => kept[kind]).map((kind) => ({ run, checkpoint, step: kept.step, kind, ...kept[kind] }))));
    if (!scores.length) continue;
    const all = scores.flatMap((score) => score.returns || []), low = Math.min(...all), high = Math.max(...all);
    const rows = scores.map((score) => [
      `${score.run.label} · seed ${score.run.seed ?? "?"}`, score.kind, `${formatNumber(score.mean)} ± ${formatNumber(score.std, 3)}`,
      formatNumber(score.min), formatNumber(score.max), String(score.episodes), score.returns ? dotStrip(score.returns, low, high) : null,
      `${score.checkpoint}, step ${Number(score.step).toLocaleString("en")}${score.step === score.run.step ? "" : " (the run has gone on)"}`,
    ]);
    const box = element("div", { class: "scroll" });
    box.append(table(["Run", "Actions", "Return", "Min", "Max", "Episodes", `${formatNumber(low)} to ${formatNumber(high)}`, "Checkpoint"], rows, [2, 3, 4, 5]));
    parts.push(element("h3", {}, env), box);
  }
  if (parts.length) parts.push(element("p", { class: "note" }, "Deterministic plays the most likely action, stochastic samples as in training. Mean ± standard deviation over episodes; a dot is an episode, the bar their mean."));
  return parts;
}

function publishedParts(data) {
  const parts = [];
  for (const [env, names] of groupsOf(data.runs)) {
    const theirs = data.published[env] || [];
    if (!theirs.length) continue;
    const ours = [...names].map(([label, runs]) => {
      const returns = known(runs.map((run) => run.mean_return)), steps = Math.min(...runs.map((run) => run.step));
      const score = returns.length ? meanAndDeviation(returns) : null, count = `${returns.length} seed${returns.length === 1 ? "" : "s"}`;
      const text = score ? `${formatNumber(score.mean, 5)}${returns.length > 1 ? ` ± ${formatNumber(score.deviation, 3)}` : ""}` : "–";
      return [element("b", {}, `ProxRL, ${label} (${count})`), text, steps.toLocaleString("en")];
    });
    const rows = theirs.map((entry) => [
      entry.implementation, `${formatNumber(entry.mean, 5)}${entry.deviation === null ? "" : ` ± ${formatNumber(entry.deviation, 3)}`}`,
      entry.steps === null ? null : entry.steps.toLocaleString("en"),
    ]);
    const box = element("div", { class: "scroll" });
    box.append(table(["Implementation", "Return", "Agent steps"], [...ours, ...rows], [1, 2]));
    parts.push(element("h3", {}, env), box);
  }
  if (parts.length) parts.push(element("p", { class: "note" }, "Ours is the mean return of the last 100 training episodes, ± the standard deviation over seeds where there are several. The others are as their authors publish them, after the steps in the table. Compare rows of equal steps only, and a few seeds with caution."));
  return parts;
}

function settingText(value) {
  if (Array.isArray(value)) return value.map(settingText).join(" ");
  if (typeof value === "boolean") return value ? "on" : "off";
  if (value !== null && typeof value === "object") return Object.entries(value).map(([key, item]) => `${key}=${JSON.stringify(item)}`).join(" ") || "none";
  return String(value);
}

/** Settings that are not the same in all runs, apart from what every run has of its own. */
function differencesTable(runs) {
  const heads = [...new Map(runs.map((run) => [`${run.env} · ${run.label}`, run]))];
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].filter((name) => !["env", "name", "seed"].includes(name));
  const rows = names.map((name) => [name, ...heads.map(([, run]) => settingText(run.settings[name] ?? "–"))]).filter((row) => new Set(row.slice(1)).size > 1);
  return heads.length > 1 && rows.length ? table(["Setting", ...heads.map(([label]) => label)], rows) : null;
}

function videoParts(run) {
  const parts = [], left = [];
  for (const video of run.videos) {
    if (!video.source || parts.length) {
      left.push(`${video.name} (${formatNumber(video.size / 1e6, 2)} MB)`);
      continue;
    }
    const player = video.name.endsWith(".gif") ? element("img", { alt: video.name }) : element("video", { controls: "", loop: "", preload: "auto", playsinline: "" });
    player.src = video.source;
    const figure = element("figure");
    figure.append(player, element("figcaption", { class: "note" }, video.name));
    parts.push(figure);
  }
  if (run.videos.length) parts.unshift(element("h2", {}, "Video"));
  if (left.length) parts.push(element("p", { class: "note" }, `Not shown, but in the run's videos folder: ${left.join(", ")}.`));
  return parts;
}

function repeatParts(run) {
  const box = element("div", { class: "command" }), text = element("code", {}, run.command), button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => {
    // The clipboard is closed to pages from disk in some browsers; a selection can be copied in all.
    getSelection().selectAllChildren(text);
    if (navigator.clipboard) navigator.clipboard.writeText(run.command).then(() => { button.textContent = "Copied"; }, () => {});
  });
  box.append(text, button);
  const inSame = "In the folder that holds the run this resumes it, or finds it done; --clobber or another --name runs it anew.";
  return [box, element("p", { class: "note" }, `${inSame} All settings are in ${run.config_path}.`)];
}

function settingsTable(run, about, filter, onlyChanged) {
  const rows = [], wanted = filter.trim().toLowerCase();
  for (const [name, value] of Object.entries(run.settings)) {
    const told = about[name] || { group: "of another version", help: "", default: null };
    const changed = name !== "env" && JSON.stringify(value) !== JSON.stringify(told.default), text = settingText(value);
    if ((onlyChanged && !changed) || (wanted && ![name, text, told.group, told.help].some((part) => part.toLowerCase().includes(wanted)))) continue;
    rows.push([element("code", {}, name), changed ? element("mark", { title: `default ${settingText(told.default)}` }, text) : text, told.help, told.group]);
  }
  return rows.length ? table(["Setting", "Value", "Meaning", "Group"], rows) : element("p", { class: "empty" }, "No setting matches.");
}

function systemTable(run) {
  const machine = run.machine || {}, git = run.git, versions = Object.entries(run.versions || {});
  const memory = machine.memory_gb ? `${machine.memory_gb} GB` : null, device = [run.settings.device, machine.gpu].filter(Boolean).join(", ");
  const rows = [
    ["Device", device], ["Processor", machine.processor], ["Cores", machine.cores && String(machine.cores)], ["Memory", memory],
    ["System", [machine.os, machine.architecture].filter(Boolean).join(", ")], ["Host", run.host],
    ["Commit", git && `${git.commit.slice(0, 12)}${git.dirty ? ", with changes" : ""}`],
    ...versions.map(([name, version]) => [name, version]), ["Run folder", run.path],
  ];
  return table(["", ""], rows.filter(([, value]) => value));
}
