// Elements, and putting them where others are without taking the focus away.

// Names, reasons and commands are what tenants wrote. Control characters, characters without width
// and those that reorder a line let one text look like another, so they are shown by their number.
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\u2028\u2029\ufff9-\ufffb]|(?![\n\t])\p{Cc}/gu;

/** A text in which each character that is obeyed and not shown is escaped, as the terminal does it. */
export const visible = (text) => text.replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

const relay = (event) => event.currentTarget.heard?.[event.type]?.(event);

/** The only listener of this kind on an element: another one takes its place. */
export function listen(element, kind, listener) {
  if (!element.heard?.[kind]) element.addEventListener(kind, relay);
  element.heard = { ...element.heard, [kind]: listener };
}

/** An element: h('a', {href: '#/'}, 'text', child). Text is never read as HTML. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) listen(element, key.slice(2), value);
    else if (key === 'width' || key === 'height') element.style[key] = value;
    else if (key === 'title' || key === 'aria-label') element.setAttribute(key, visible(String(value)));
    else element.setAttribute(key, value === true ? '' : value);
  }
  const said = children.flat().filter((child) => child !== null && child !== undefined && child !== '' && child !== false);
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
  // The element stays, and does what the new one would do.
  const kinds = Object.keys({ ...old.heard, ...node.heard });
  for (const kind of kinds) listen(old, kind, node.heard?.[kind] ?? (() => {}));
  // What a person types into stays as it is, until the address says otherwise.
  if (['INPUT', 'SELECT', 'TEXTAREA'].includes(old.nodeName)) {
    if (old === document.activeElement) return;
    const more = old.nodeName === 'SELECT' && old.options.length !== node.options.length;
    if (!renewing && !more) return;
    const { value } = renewing ? node : old;
    if (old.nodeName === 'SELECT') old.replaceChildren(...node.childNodes);
    old.value = value;
    return;
  }
  // Elements that were drawn, opened or placed since then stay.
  const own = { CANVAS: ['width', 'height', 'style', 'data-drawn'], DETAILS: ['open'] }[old.nodeName] ?? (old.id === 'tip' ? ['style', 'hidden'] : []);
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && !own.includes(name)) old.removeAttribute(name);
  if (own.includes('hidden')) return;
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) {
    if (name === 'style') Object.assign(old.style, { width: node.style.width, height: node.style.height });
    else old.setAttribute(name, value);
  }
  if (old.nodeName === 'CANVAS') return;
  put(old, [...node.childNodes]);
}

/** A command with a button that copies it. */
export function copy(command, id) {
  const take = () => navigator.clipboard.writeText(command)
    .then(() => tell(`Copied: ${command}`), () => tell('The browser does not let this page copy: select the command.'));
  return h('span', { class: 'command' }, h('code', {}, command), h('button', { id, 'aria-label': `Copy ${command}`, onclick: take }, 'Copy'));
}

let telling = 0;

/** Says something for a few seconds, to screen readers too. */
export function tell(words) {
  const said = document.getElementById('said');
  clearTimeout(telling);
  said.textContent = visible(words);
  said.hidden = false;
  telling = setTimeout(() => { said.hidden = true; }, 4000);
}

/** Which rights are missing, and what is left out for that. */
export function lacks(rights, what) {
  if (!rights.length) return null;
  return h('p', { class: 'lacks' }, `You may not list ${rights.join(', ')}: ${what}. An admin can grant it, and `, h('code', {}, 'kubectl auth can-i --list'), ' shows what you may do.');
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
