"use strict";
// The details of a run: settings and their differences, video, command, system.

function settingText(value) {
  if (Array.isArray(value)) return value.map(settingText).join(" ");
  if (typeof value === "boolean") return value ? "on" : "off";
  if (value === null || typeof value !== "object") return String(value);
  return Object.entries(value).map(([key, item]) => `${key}=${JSON.stringify(item)}`).join(" ") || "none";
}

/** Returns a table of the settings that differ between runs, other than environment, name and seed. */
function differencesTable(runs) {
  const heads = [...new Map(runs.map((run) => [`${run.env} · ${run.label}`, run]))];
  const all = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const names = all.filter((name) => !["env", "name", "seed"].includes(name));
  const values = names.map((name) => [name, ...heads.map(([, run]) => settingText(run.settings[name] ?? "–"))]);
  const rows = values.filter(([, ...row]) => new Set(row).size > 1);
  return heads.length > 1 && rows.length ? table(["Setting", ...heads.map(([label]) => label)], rows) : null;
}

function videoElements(run) {
  const parts = [], notShown = [];
  for (const video of run.videos) {
    if (!video.source || parts.length) {
      notShown.push(`${video.name} (${formatNumber(video.size / 1e6, 2)} MB)`);
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
  const note = `Not shown here, but in the run's videos folder: ${notShown.join(", ")}.`;
  if (notShown.length) parts.push(element("p", { class: "note" }, note));
  return parts;
}

function repeatElements(run) {
  const box = element("div", { class: "command" }), text = element("code", {}, run.command);
  const button = element("button", { type: "button" }, "Copy");
  button.addEventListener("click", () => {
    // Some browsers deny pages from disk the clipboard, so the text is also selected, which works in all.
    getSelection().selectAllChildren(text);
    if (navigator.clipboard) navigator.clipboard.writeText(run.command).then(() => { button.textContent = "Copied"; }, () => {});
  });
  box.append(text, button);
  const note = "In the same folder, this command resumes the run if it is not finished; --clobber or another --name starts over.";
  return [box, element("p", { class: "note" }, `${note} All settings are in ${run.config_path}.`)];
}

function settingsTable(run, about, filter, onlyChanged) {
  const rows = [], query = filter.trim().toLowerCase();
  for (const [name, value] of Object.entries(run.settings)) {
    const info = about[name] || { group: "of another version", help: "", default: null };
    const changed = name !== "env" && JSON.stringify(value) !== JSON.stringify(info.default), text = settingText(value);
    const matches = [name, text, info.group, info.help].some((part) => part.toLowerCase().includes(query));
    if (!matches || (onlyChanged && !changed)) continue;
    const shown = changed ? element("mark", { title: `default ${settingText(info.default)}` }, text) : text;
    rows.push([element("code", {}, name), shown, info.help, info.group]);
  }
  if (!rows.length) return element("p", { class: "empty" }, "No setting matches.");
  return table(["Setting", "Value", "Meaning", "Group"], rows);
}

function systemTable(run) {
  const machine = run.machine || {}, git = run.git, versions = Object.entries(run.versions || {});
  const changes = run.changes || [];
  const memory = machine.memory_gb ? `${machine.memory_gb} GB` : null;
  const device = [run.settings.device, machine.gpu].filter(Boolean).join(", ");
  const rows = [
    ["Device", device], ["Processor", machine.processor], ["Cores", machine.cores && String(machine.cores)], ["Memory", memory],
    ["System", [machine.os, machine.architecture].filter(Boolean).join(", ")], ["Host", run.host],
    ["Commit", git && `${git.commit.slice(0, 12)}${git.dirty ? ", with changes" : ""}`],
    ["Started from", run.origin],
    ["Changed on resume", changes.map((one) => `${one.setting} from ${one.before} to ${one.after} at step ${one.step}`).join("; ")],
    ...versions.map(([name, version]) => [name, version]), ["Run folder", run.path],
  ];
  return table(["", ""], rows.filter(([, value]) => value));
}
