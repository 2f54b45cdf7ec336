// Elements, and putting them where others are without taking the focus away.

// Names, reasons and commands are what tenants wrote. Control characters, characters without width
// and those that reorder a line let one text look like another.
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\u2028\u2029\ufff9-\ufffb]|(?![\n\t])\p{Cc}/gu;

/** A text without the characters that are obeyed and not shown. */
export const visible = (text) => text.replace(UNSEEN, '');

/** An element: h('a', {href: '#/'}, 'text', child). Text is never read as HTML. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'width') element.style.width = value;
    else if (key === 'title' || key === 'aria-label') element.setAttribute(key, visible(String(value)));
    else element.setAttribute(key, value === true ? '' : value);
  }
  const said = children.flat().filter((child) => child !== null && child !== undefined && child !== '');
  element.append(...said.map((child) => (typeof child === 'string' ? visible(child) : child)));
  return element;
}

/** Puts `fresh` in the place of what `root` holds; what did not change stays, focus included. */
export function show(root, ...fresh) {
  put(root, ...fresh);
  renewing = false;
}

function put(root, ...fresh) {
  const wanted = fresh.flat().filter(Boolean);
  while (root.childNodes.length > wanted.length) root.lastChild.remove();
  wanted.forEach((node, at) => {
    const old = root.childNodes[at];
    if (!old) root.append(node);
    else merge(old, node);
  });
}

let renewing = false;

/** The next things that are put there say what fields have, too. */
export function renew() { renewing = true; }

function merge(old, node) {
  if (old.nodeType !== node.nodeType || old.nodeName !== node.nodeName || old.id !== node.id) {
    old.replaceWith(node);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  // What a person types into stays as it is, until the address says otherwise; listeners of buttons
  // are those of the first.
  if (['INPUT', 'SELECT', 'TEXTAREA'].includes(old.nodeName)) {
    if (!renewing || old === document.activeElement) return;
    const { value } = node;
    if (old.nodeName === 'SELECT') old.replaceChildren(...node.childNodes);
    old.value = value;
    return;
  }
  // Elements that were drawn, opened or placed since then stay.
  const own = { CANVAS: ['width', 'height', 'style', 'data-drawn'], DETAILS: ['open'] }[old.nodeName] ?? (old.id === 'tip' ? ['style', 'hidden'] : []);
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && !own.includes(name)) old.removeAttribute(name);
  if (own.includes('hidden')) return;
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) {
    if (name === 'style') old.style.width = node.style.width;
    else old.setAttribute(name, value);
  }
  if (old.nodeName === 'CANVAS') return;
  put(old, [...node.childNodes]);
}

/** Granted and used of what can be granted, as a bar with words. */
export function bar(granted, used, all, names = ['granted', 'used']) {
  const part = (value) => `${Math.min(100, (value / Math.max(1, all)) * 100).toFixed(1)}%`;
  const words = `${part(granted)} ${names[0]}, ${part(used)} ${names[1]}`;
  return h('span', { class: 'bar', role: 'img', 'aria-label': words, title: words },
    h('i', { width: part(granted) }), h('i', { width: part(used) }));
}

/** 1,234,567 */
export const number = (value) => value.toLocaleString('en');

/** MiB, in the unit that reads best. */
export function memory(mib) {
  for (const [unit, size] of [['TiB', 1048576], ['GiB', 1024]]) {
    if (mib >= 10 * size) return `${number(Math.round((mib / size) * 10) / 10)} ${unit}`;
  }
  return `${number(mib)} MiB`;
}

/** How long ago, in two units at most. */
export function age(stamp) {
  let seconds = Math.max(0, Math.floor((Date.now() - stamp) / 1000));
  const words = [];
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]]) {
    const count = Math.floor(seconds / size);
    seconds -= count * size;
    if (count || (unit === 's' && !words.length)) words.push(`${count} ${unit}`);
    if (words.length === 2 || (words.length && unit === 'min')) break;
  }
  return words.join(' ');
}
