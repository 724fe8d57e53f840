// Elements of pictures.
import { fill } from "./dom.js";

/** An SVG element; arguments as of `element`. @returns {SVGElement} */
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
