"use strict";
// Mouse, touch and keyboard input of a chart.

// If the mouse moves less than this between press and release, it is a click.
const DRAG_PIXELS = 6;

function listenTo(chart) {
  const svg = chart.svg;
  let pressedAt = null;
  const pixel = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(MARGIN.left, Math.min(event.clientX - box.left, box.width - MARGIN.right));
  };
  svg.addEventListener("pointerdown", (event) => {
    // Only a mouse selects a range: a finger that moves reads values, and the buttons zoom.
    if (event.pointerType === "mouse" && event.button === 0) pressedAt = pixel(event);
    chart.hoverAt(chart.toX(pixel(event)));
  });
  svg.addEventListener("pointermove", (event) => {
    chart.hoverAt(chart.toX(pixel(event)));
    if (pressedAt === null) return;
    svg.setPointerCapture(event.pointerId);
    chart.selection.setAttribute("x", Math.min(pressedAt, pixel(event)));
    chart.selection.setAttribute("width", Math.abs(pixel(event) - pressedAt));
  });
  svg.addEventListener("pointerup", (event) => {
    if (pressedAt === null) return;
    const ends = [pressedAt, pixel(event)].sort((a, b) => a - b);
    pressedAt = null;
    if (ends[1] - ends[0] > DRAG_PIXELS) chart.setZoom(ends.map((end) => chart.toX(end)));
    else chart.selection.setAttribute("width", 0);
  });
  svg.addEventListener("pointercancel", () => {
    pressedAt = null;
    chart.selection.setAttribute("width", 0);
  });
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && chart.hoverAt(null));
  svg.addEventListener("dblclick", () => chart.setZoom(null));
  svg.addEventListener("blur", () => chart.hoverAt(null));
  svg.addEventListener("keydown", (event) => handleKey(chart, event));
}

function handleKey(chart, event) {
  const actions = {
    ArrowLeft: () => hoverNext(chart, -1),
    ArrowRight: () => hoverNext(chart, 1),
    "+": () => chart.zoomBy(0.5),
    "-": () => chart.zoomBy(2),
    0: () => chart.setZoom(null),
    Escape: () => {
      chart.hoverAt(null);
      chart.setZoom(null);
    },
  };
  if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  actions[event.key]();
}

/** Moves the hover to the next position to the left (-1) or right (1), by at least 1% of the width of the chart. */
function hoverNext(chart, direction) {
  const [first, last] = chart.range, from = chart.hoverX ?? (direction > 0 ? first : last);
  const step = (direction * (last - first)) / 100;
  const candidates = chart.positions().filter((x) => (x - from) * direction > 0).sort((a, b) => (a - b) * direction);
  const next = candidates.find((x) => (x - from - step) * direction >= 0);
  if (candidates.length) chart.hoverAt(next ?? candidates[candidates.length - 1]);
}
