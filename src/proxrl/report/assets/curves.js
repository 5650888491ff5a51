"use strict";
// The same computations as in report/curves.py: smoothed curves, and their mean over seeds with a bootstrap interval.

// Bootstrap resamples of the seeds.
const DRAWS = 1000;

/** Counts the sorted numbers that are at most `limit`. */
function countUpTo(sorted, limit) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= limit) low = middle + 1; else high = middle;
  }
  return low;
}

/** One metric of one run: positions, values, and the running total of the values. */
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

/** Returns the mean of the curve over the window before each point of the grid. */
function windowMeans(curve, grid, width) {
  return grid.map((at) => {
    const last = countUpTo(curve.x, at);
    const first = Math.max(0, Math.min(countUpTo(curve.x, at - width), last - 1));
    return last - first === 1 ? curve.value[first] : (curve.total[last] - curve.total[first]) / Math.max(last - first, 1);
  });
}

/** A small seeded random number generator (mulberry32), so that the draws are always the same. */
function randomNumbers(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** Returns the share of each seed in each bootstrap resample. */
const drawnShares = (() => {
  const cache = new Map();
  return (seeds) => {
    if (!cache.has(seeds)) {
      const random = randomNumbers(1);
      cache.set(seeds, Array.from({ length: DRAWS }, () => {
        const shares = new Float64Array(seeds);
        for (let i = 0; i < seeds; i++) shares[Math.floor(random() * seeds)] += 1 / seeds;
        return shares;
      }));
    }
    return cache.get(seeds);
  };
})();

function quantile(sorted, share) {
  const at = share * (sorted.length - 1), below = Math.floor(at);
  return sorted[below] + (at - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
}

/**
 * Returns the mean of the curves and its bootstrap interval within `range`, up to the end of the shortest curve. Several curves
 * are compared at `points` positions; a single one keeps its own.
 */
function bandOf(curves, smoothing, range, confidence, points) {
  const end = Math.min(...curves.map((curve) => curve.x[curve.x.length - 1]));
  // A run that has just started may end before the first point of another, which then has no value there.
  curves = curves.filter((curve) => curve.x[0] <= end);
  const start = Math.max(...curves.map((curve) => curve.x[0]));
  const width = smoothing * end;
  if (curves.length === 1) {
    // One more point on either side, so that the line continues to the edge of the chart.
    const x = curves[0].x, first = Math.max(0, countUpTo(x, range[0]) - 1);
    const grid = x.slice(first, countUpTo(x, range[1]) + 1);
    const mean = windowMeans(curves[0], grid, width);
    return { x: grid, mean, low: mean, high: mean };
  }
  const from = Math.max(start, range[0]), to = Math.min(end, range[1]);
  if (to < from) return { x: [], mean: [], low: [], high: [] };
  const count = to > from ? points : 1;
  const grid = Array.from({ length: count }, (_, i) => (i === count - 1 ? to : from + ((to - from) * i) / (count - 1)));
  const values = curves.map((curve) => windowMeans(curve, grid, width));
  const shares = drawnShares(curves.length), tail = (1 - confidence) / 2;
  const band = { x: grid, mean: [], low: [], high: [] }, means = new Float64Array(DRAWS);
  for (let i = 0; i < count; i++) {
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

function numbersIn(values) {
  return values.filter((value) => typeof value === "number");
}

function meanOf(values) {
  return numbersIn(values).length ? meanAndDeviation(numbersIn(values)).mean : null;
}

/** Returns the mean and the standard deviation (of the population, as NumPy's default). */
function meanAndDeviation(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  return { mean, deviation: Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length) };
}
