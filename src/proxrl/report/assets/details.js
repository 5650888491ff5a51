"use strict";
// What a run was made of: settings, their differences, video, command, system.

function settingText(value) {
  if (Array.isArray(value)) return value.map(settingText).join(" ");
  if (typeof value === "boolean") return value ? "on" : "off";
  if (value === null || typeof value !== "object") return String(value);
  return Object.entries(value).map(([key, item]) => `${key}=${JSON.stringify(item)}`).join(" ") || "none";
}

/** Settings that are not the same in all runs, apart from what every run has of its own. */
function differencesTable(runs) {
  const heads = [...new Map(runs.map((run) => [`${run.env} · ${run.label}`, run]))];
  const all = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const names = all.filter((name) => !["env", "name", "seed"].includes(name));
  const told = names.map((name) => [name, ...heads.map(([, run]) => settingText(run.settings[name] ?? "–"))]);
  const rows = told.filter(([, ...values]) => new Set(values).size > 1);
  return heads.length > 1 && rows.length ? table(["Setting", ...heads.map(([label]) => label)], rows) : null;
}

function videoParts(run) {
  const parts = [], left = [];
  for (const video of run.videos) {
    if (!video.source || parts.length) {
      left.push(`${video.name} (${formatNumber(video.size / 1e6, 2)} MB)`);
      continue;
    }
    const film = { controls: "", loop: "", preload: "auto", playsinline: "" };
    const player = video.name.endsWith(".gif") ? element("img", { alt: video.name }) : element("video", film);
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
  const box = element("div", { class: "command" }), text = element("code", {}, run.command);
  const button = element("button", { type: "button" }, "Copy");
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
    const found = [name, text, told.group, told.help].some((part) => part.toLowerCase().includes(wanted));
    if (!found || (onlyChanged && !changed)) continue;
    const shown = changed ? element("mark", { title: `default ${settingText(told.default)}` }, text) : text;
    rows.push([element("code", {}, name), shown, told.help, told.group]);
  }
  if (!rows.length) return element("p", { class: "empty" }, "No setting matches.");
  return table(["Setting", "Value", "Meaning", "Group"], rows);
}

function systemTable(run) {
  const machine = run.machine || {}, git = run.git, versions = Object.entries(run.versions || {});
  const memory = machine.memory_gb ? `${machine.memory_gb} GB` : null;
  const device = [run.settings.device, machine.gpu].filter(Boolean).join(", ");
  const rows = [
    ["Device", device], ["Processor", machine.processor], ["Cores", machine.cores && String(machine.cores)], ["Memory", memory],
    ["System", [machine.os, machine.architecture].filter(Boolean).join(", ")], ["Host", run.host],
    ["Commit", git && `${git.commit.slice(0, 12)}${git.dirty ? ", with changes" : ""}`],
    ...versions.map(([name, version]) => [name, version]), ["Run folder", run.path],
  ];
  return table(["", ""], rows.filter(([, value]) => value));
}
