"use strict";
// Numbers, times and axis ticks as text.

/** Returns about `count` round numbers between two ends. */
function ticksBetween(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(Number(value))) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e9)) return Number(value).toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(Number(value).toPrecision(digits)));
}

function formatPercent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)}%`;
}

/** Formats a number with the suffix k, M or G. */
function formatShort(value) {
  const size = Math.abs(value);
  for (const [least, unit, sign] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]]) {
    if (size >= least) return `${Number((value / unit).toPrecision(4))}${sign}`;
  }
  if (size >= 1e3) return Math.round(value).toLocaleString("en");
  return size !== 0 && size < 1e-3 ? Number(value.toPrecision(2)).toExponential() : String(Number(value.toPrecision(4)));
}

function formatTime(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${Number(seconds.toPrecision(3))} s`;
  if (seconds < 6000) return `${Number((seconds / 60).toPrecision(3))} min`;
  return seconds < 360000 ? `${Number((seconds / 3600).toPrecision(3))} h` : `${Number((seconds / 86400).toPrecision(3))} days`;
}

/** Returns the time unit for an axis of this length: its seconds, and its name. */
function timeUnit(seconds) {
  return seconds < 180 ? [1, " s"] : seconds < 10800 ? [60, " min"] : seconds < 432000 ? [3600, " h"] : [86400, " d"];
}

/** Returns mean ± standard deviation as text, or the mean alone if `deviation` is null. */
function formatSpread(mean, deviation, digits = 4) {
  return formatNumber(mean, digits) + (deviation === null ? "" : ` ± ${formatNumber(deviation, 3)}`);
}
