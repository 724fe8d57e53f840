// New data comes into the page, while focus, selection, scrolling and what a person has opened stay.

/**
 * @param {Element} parent its children become
 * @param {Node[]} wanted these; those with `data-key` are found by it, others by their place
 */
export const morphChildren = (parent, wanted) => {
  const keyed = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  wanted.forEach((node, i) => {
    const key = node.nodeType === Node.ELEMENT_NODE ? node.dataset.key : undefined;
    const there = parent.childNodes[i];
    const old = key === undefined ? there : keyed.get(key);
    if (!old) parent.insertBefore(node, there ?? null);
    else {
      if (old !== there) parent.insertBefore(old, there ?? null);
      morph(old, node);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
};

const morph = (old, wanted) => {
  if (old.nodeName !== wanted.nodeName) old.replaceWith(wanted);
  else if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
  } else {
    for (const { name, value } of [...wanted.attributes]) {
      if (name === "open" || old.getAttribute(name) === value) continue;
      if (name === "style") old.style.cssText = value; // the page's policy forbids the attribute
      else old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (name !== "open" && !wanted.hasAttribute(name)) old.removeAttribute(name);
    }
    morphChildren(old, [...wanted.childNodes]);
  }
};
