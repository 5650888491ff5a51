"use strict";
// How a reader moves in a chart: mouse, finger and keys.

// A mouse that moves less than this between press and release was a click.
const DRAG_PIXELS = 6;

function listenTo(chart) {
  const svg = chart.svg;
  let pressedAt = null;
  const pixel = (event) => {
    const box = svg.getBoundingClientRect();
    return Math.max(MARGIN.left, Math.min(event.clientX - box.left, box.width - MARGIN.right));
  };
  svg.addEventListener("pointerdown", (event) => {
    // A finger that moves reads values; the buttons zoom.
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
  svg.addEventListener("keydown", (event) => press(chart, event));
}

function press(chart, event) {
  const acts = {
    ArrowLeft: () => hoverBeside(chart, -1),
    ArrowRight: () => hoverBeside(chart, 1),
    "+": () => chart.zoomBy(0.5),
    "-": () => chart.zoomBy(2),
    0: () => chart.setZoom(null),
    Escape: () => {
      chart.hoverAt(null);
      chart.setZoom(null);
    },
  };
  if (!acts[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  acts[event.key]();
}

/** The next position to the left or right of the one that is read, a hundredth of the picture on at least. */
function hoverBeside(chart, direction) {
  const [first, last] = chart.range, from = chart.hoverX ?? (direction > 0 ? first : last);
  const step = (direction * (last - first)) / 100;
  const beside = chart.positions().filter((x) => (x - from) * direction > 0).sort((a, b) => (a - b) * direction);
  const far = beside.find((x) => (x - from - step) * direction >= 0);
  if (beside.length) chart.hoverAt(far ?? beside[beside.length - 1]);
}
