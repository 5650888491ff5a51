"use strict";
// Curves to draw from runs as they were logged, as proxrl/curves.py computes them, and numbers as people read them.

// How often seeds are drawn anew to see how far their mean depends on them.
const DRAWS = 1000;

/** How many of the sorted numbers are at most `limit`. */
function countUpTo(sorted, limit) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= limit) low = middle + 1; else high = middle;
  }
  return low;
}

/** One metric of one run where it was logged: x, and sums of the values up to there. */
function curveOf(run, metric, by) {
  const values = run.curves.metrics[metric] || [], positions = run.curves[by];
  const x = [], value = [], total = [0];
  for (let i = 0; i < values.length; i++) {
    if (values[i] === null || positions[i] === null) continue;
    x.push(positions[i]);
    value.push(values[i]);
    total.push(total[total.length - 1] + values[i]);
  }
  return { x, value, total };
}

/** The mean over the window before each point of the grid. */
function windowMeans(curve, grid, width) {
  return grid.map((at) => {
    const last = countUpTo(curve.x, at);
    const first = Math.max(0, Math.min(countUpTo(curve.x, at - width), last - 1));
    return last - first === 1 ? curve.value[first] : (curve.total[last] - curve.total[first]) / Math.max(last - first, 1);
  });
}

/** A small generator of random numbers: the draws are always the same ones. */
function randomNumbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** How often each of the seeds comes in each draw with repetition, as shares. */
const drawnShares = (() => {
  const kept = new Map();
  return (seeds) => {
    if (!kept.has(seeds)) {
      const random = randomNumbers(1);
      kept.set(seeds, Array.from({ length: DRAWS }, () => {
        const shares = new Float64Array(seeds);
        for (let i = 0; i < seeds; i++) shares[Math.floor(random() * seeds)] += 1 / seeds;
        return shares;
      }));
    }
    return kept.get(seeds);
  };
})();

function quantile(sorted, share) {
  const at = share * (sorted.length - 1), below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

/**
 * The mean of curves between two positions, as far as all go, and the interval it would lie in with other seeds; of several
 * curves read off at `most` points.
 */
function bandOf(curves, smoothing, range, confidence, most) {
  const end = Math.min(...curves.map((curve) => curve.x[curve.x.length - 1]));
  // A run that has just begun may end before another's first point, which then has nothing to say there.
  curves = curves.filter((curve) => curve.x[0] <= end);
  const start = Math.max(...curves.map((curve) => curve.x[0]));
  const width = smoothing * end;
  if (curves.length === 1) {
    // One more on either side, so that the line goes on to the edge of the picture.
    const x = curves[0].x, first = Math.max(0, countUpTo(x, range[0]) - 1);
    const grid = x.slice(first, countUpTo(x, range[1]) + 1);
    const mean = windowMeans(curves[0], grid, width);
    return { x: grid, mean, low: mean, high: mean };
  }
  const from = Math.max(start, range[0]), to = Math.min(end, range[1]);
  if (to < from) return { x: [], mean: [], low: [], high: [] };
  const points = to > from ? most : 1;
  const grid = Array.from({ length: points }, (_, i) => (i === points - 1 ? to : from + ((to - from) * i) / (points - 1)));
  const values = curves.map((curve) => windowMeans(curve, grid, width));
  const shares = drawnShares(curves.length), tail = (1 - confidence) / 2;
  const band = { x: grid, mean: [], low: [], high: [] }, means = new Float64Array(DRAWS);
  for (let i = 0; i < points; i++) {
    let sum = 0;
    for (const value of values) sum += value[i];
    for (let draw = 0; draw < DRAWS; draw++) {
      let mean = 0;
      for (let seed = 0; seed < values.length; seed++) mean += shares[draw][seed] * values[seed][i];
      means[draw] = mean;
    }
    means.sort();
    band.mean.push(sum / values.length);
    band.low.push(quantile(means, tail));
    band.high.push(quantile(means, 1 - tail));
  }
  return band;
}

/** Round numbers between two ends, about as many as asked for. */
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

/** Seconds in the unit that an axis of this length wants, and its name. */
function timeUnit(seconds) {
  return seconds < 180 ? [1, " s"] : seconds < 10800 ? [60, " min"] : seconds < 432000 ? [3600, " h"] : [86400, " d"];
}

/** Mean ± deviation as text; without the latter where there is none. */
function formatSpread(mean, deviation, digits = 4) {
  return formatNumber(mean, digits) + (deviation === null ? "" : ` ± ${formatNumber(deviation, 3)}`);
}

function meanAndDeviation(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return { mean, deviation: Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length) };
}
