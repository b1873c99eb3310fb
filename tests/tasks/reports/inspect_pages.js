// Looks at pages in frames of different widths and colour schemes, as a browser lays them out, and writes what is wrong
// with them into #findings, as JSON: one list of sentences for each frame, by the frame's name.
"use strict";

const SMALLEST = 12; // pixels of text
const LONGEST = 60; // em of a line: about a hundred letters
const CONTRAST = 4.5; // WCAG 2.2, level AA, for text of any size

function luminance(colour) {
  const parts = colour.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
}

function colourOf(text) {
  const parts = text.match(/[\d.]+/g).map(Number);
  return parts.length === 4 && parts[3] === 0 ? null : parts.slice(0, 3);
}

function behind(view, element) {
  for (let place = element; place; place = place.parentElement) {
    const colour = colourOf(view.getComputedStyle(place).backgroundColor);
    if (colour) return colour;
  }
  return [255, 255, 255];
}

function texts(document) {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const range = document.createRange();
    range.selectNodeContents(node);
    const boxes = [...range.getClientRects()];
    if (node.data.trim() && boxes.length && !node.parentElement.closest("title")) {
      found.push({ element: node.parentElement, text: node.data.trim().slice(0, 40), boxes });
    }
  }
  return found;
}

function apart(one, other) {
  // Boxes of text are higher than its letters: a pixel or two of them may touch.
  return one.right <= other.left + 1 || other.right <= one.left + 1 || one.bottom <= other.top + 3 || other.bottom <= one.top + 3;
}

function inspect(frame) {
  const view = frame.contentWindow, document = frame.contentDocument, findings = [];
  const root = document.documentElement;
  if (view.matchMedia("(prefers-color-scheme: dark)").matches !== (frame.dataset.scheme === "dark")) {
    findings.push(`is not shown in ${frame.dataset.scheme}`);
  }
  if (root.scrollWidth > view.innerWidth) findings.push(`scrolls sideways: ${root.scrollWidth} pixels wide`);
  for (const element of document.querySelectorAll("body *")) {
    const style = view.getComputedStyle(element);
    const hides = (overflow) => ["hidden", "clip"].includes(overflow);
    if (element.namespaceURI.endsWith("svg") || !element.textContent.trim()) continue;
    if ((hides(style.overflowX) && element.scrollWidth > element.clientWidth)
        || (hides(style.overflowY) && element.scrollHeight > element.clientHeight)) {
      findings.push(`cuts "${element.textContent.trim().slice(0, 40)}"`);
    }
  }
  const charts = new Map();
  for (const { element, text, boxes } of texts(document)) {
    const style = view.getComputedStyle(element);
    const drawing = element.closest("svg");
    const size = parseFloat(style.fontSize) * (drawing ? drawing.getScreenCTM().a : 1);
    if (size < SMALLEST) findings.push(`"${text}" is ${size.toFixed(1)} pixels high`);
    const lights = [luminance(colourOf(drawing ? style.fill : style.color)), luminance(behind(view, element))].sort((a, b) => b - a);
    const contrast = (lights[0] + 0.05) / (lights[1] + 0.05);
    if (contrast < CONTRAST) findings.push(`"${text}" has contrast ${contrast.toFixed(1)}`);
    if (!element.closest(".scroll")) {
      for (const box of boxes) {
        if (box.left < 0 || box.right > view.innerWidth) findings.push(`"${text}" leaves the page`);
        if (box.width > LONGEST * size) findings.push(`"${text}" is a line of ${Math.round(box.width / size)} em`);
      }
    }
    const figure = drawing || element.closest(".heat-map, .bars");
    if (figure) {
      for (const other of charts.get(figure) || []) {
        if (!boxes.every((box) => other.boxes.every((place) => apart(box, place)))) findings.push(`"${text}" lies on "${other.text}"`);
      }
      charts.set(figure, [...(charts.get(figure) || []), { text, boxes }]);
    }
  }
  return [...new Set(findings)];
}

window.addEventListener("load", () => {
  const found = {};
  for (const frame of document.querySelectorAll("iframe")) found[frame.name] = inspect(frame);
  document.getElementById("findings").textContent = JSON.stringify(found);
});
