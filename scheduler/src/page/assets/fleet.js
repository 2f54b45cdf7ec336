// Every card as a cell of one picture: changes are applied, the rest is drawn from memory.

import { h, memory, number, visible } from './dom.js';
import { query, table } from './list.js';

const FENCES = ['no fence yet', 'Watched by WatchdogOnly', 'Guarded by ClientLimit', 'Guarded by ServerLimit', 'Hard by DriverLimit'];
const STATES = ['in order', 'agent disconnected', 'cordoned', 'not ready', 'processes without a grant', 'unhealthy'];
const COLOURS = { granted: 'Granted', used: 'Used', idle: 'Granted but idle', fence: 'Fence level', health: 'Health', queue: 'Queue' };
const QUEUES = 9; // Told apart by colour; the others share one.
const GROUPS = 100; // Rows of the table at once.

const model = { token: '', nodes: new Map(), keys: [], groups: new Map() };
let layout = null; // Of the picture that is shown.
const layouts = new Map(); // By what cards are grouped by, while nothing changes.
let chosen = 0; // The cell that has the focus.
let drawn = 0; // Milliseconds that the last picture took, for those who measure.

export const fleetData = () => `api/fleet?since=${encodeURIComponent(model.token)}`;
export const fleetReset = () => { model.token = ''; };

/** Takes an answer in. */
function take(answer) {
  if (answer === model.last) return;
  model.last = answer;
  if (answer.whole) model.nodes.clear();
  const word = (at) => (at < 0 ? '' : answer.words[at]);
  for (const [name, places, cards] of answer.nodes) {
    model.nodes.set(name, {
      name, places: places.map(word),
      cards: cards.map(([index, product, grantable, granted, used, state, shares]) => ({
        node: name, index, product: word(product), grantable, granted, used, state,
        shares: shares.map(([kept, inUse, fence, queue]) => ({ kept, used: inUse, fence, queue: word(queue) })),
      })),
    });
  }
  for (const name of answer.gone) model.nodes.delete(name);
  model.token = answer.token;
  model.keys = answer.keys;
  if (answer.nodes.length || answer.gone.length || answer.whole) model.groups.clear();
}

const natural = new Intl.Collator('en', { numeric: true });

/** Groups in order of name, each with its cards. Kept until something changes. */
function grouped(by) {
  if (model.groups.has(by)) return model.groups.get(by);
  const groups = new Map();
  const key = model.keys.indexOf(by);
  const nodes = [...model.nodes.values()].sort((a, b) => natural.compare(a.name, b.name));
  for (const node of nodes) {
    for (const card of node.cards) {
      const name = by === 'product' ? card.product : key >= 0 ? node.places[key] || '(without the label)' : node.name;
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(card);
    }
  }
  const sorted = by === 'node' ? [...groups] : [...groups].sort(([a], [b]) => natural.compare(a, b));
  model.groups.set(by, sorted);
  return sorted;
}

/** Where each cell is. */
function arrange(groups, width) {
  const total = groups.reduce((sum, [, cards]) => sum + cards.length, 0);
  const size = Math.max(6, Math.min(total <= 16 ? 120 : 64, Math.floor(Math.sqrt((width * 560) / Math.max(1, total)))));
  const titled = groups.length <= 200;
  const gap = size > 12 ? 2 : 1;
  const cells = [];
  const titles = [];
  const rows = []; // [first cell, y]
  let x = 0;
  let y = 0;
  const line = () => { rows.push([cells.length, y]); };
  line();
  for (const [name, cards] of groups) {
    const span = cards.length * (size + gap);
    if (titled) {
      if (x > 0) { x = 0; y += size + gap; }
      titles.push([name, y]);
      y += 18;
      line();
    } else if (x > 0 && x + Math.min(span, width) > width) {
      x = 0;
      y += size + gap;
      line();
    }
    for (const card of cards) {
      if (x + size > width) {
        x = 0;
        y += size + gap;
        line();
      }
      cells.push({ card, x, y });
      x += size + gap;
    }
    x += titled ? 0 : gap * 2;
  }
  const kept = rows.filter(([first], at) => first < (rows[at + 1]?.[0] ?? cells.length));
  return { cells, titles, rows: kept, size, gap, width, height: y + size + gap };
}

/** Queues by how much they hold, for their colours. */
function queueColours() {
  const held = new Map();
  for (const node of model.nodes.values()) for (const card of node.cards) for (const share of card.shares) held.set(share.queue, (held.get(share.queue) ?? 0) + share.kept);
  const names = [...held].filter(([name]) => name).sort(([a, one], [b, other]) => other - one || natural.compare(a, b));
  return new Map(names.slice(0, QUEUES).map(([name], at) => [name, at]));
}

const heat = (part) => 10 + Math.min(4, Math.floor(part * 5)); // h0 to h4 are 10 to 14.

/** A card's parts: [from, to, colour], in parts of the card. */
function parts(card, colour, queues) {
  const all = Math.max(1, card.grantable);
  if (colour === 'health') return card.state ? [[0, 1, [0, 6, 1, 3, 4, 5][card.state]]] : [[0, 1, 2]];
  if (colour === 'used') return card.used < 0 ? [[0, 1, 6]] : [[0, Math.min(1, card.used / all), 2]];
  let from = 0;
  return card.shares.map((share, at) => {
    const to = Math.min(1, from + share.kept / all);
    let k = at % 2 ? 8 : 2;
    if (colour === 'idle') k = share.used < 0 ? 6 : heat(Math.max(0, share.kept - share.used) / Math.max(1, share.kept));
    if (colour === 'fence') k = [6, 5, 1, 0, 2][share.fence];
    if (colour === 'queue') k = queues.get(share.queue) ?? 6;
    const part = [from, to, k];
    from = to;
    return part;
  });
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { free: of('--cell'), edge: of('--edge'), text: of('--text'), line: of('--accent'), k: [...Array(15).keys()].map((at) => of(at < 10 ? `--k${at}` : `--h${at - 10}`)) };
}

/** A colour as the pixel of an image. A canvas reads any notation and answers `#rrggbb`. */
function pixel(context, colour) {
  context.fillStyle = colour;
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(context.fillStyle.slice(at, at + 2), 16));
  return new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0];
}

/**
 * Draws all cells into one image. A rectangle of the canvas costs a call and is drawn later by the
 * browser's rasteriser: for 40,000 cards that takes ten times as long.
 */
function draw(colour) {
  const begin = performance.now();
  const canvas = document.getElementById('map');
  const context = canvas?.getContext?.('2d');
  if (!context || !layout) return;
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(layout.width * scale), Math.round(layout.height * scale)];
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
    canvas.style.width = `${layout.width}px`;
    canvas.style.height = `${layout.height}px`;
  }
  const colours = palette();
  const pixels = colours.k.map((name) => pixel(context, name));
  const free = pixel(context, colours.free);
  const edge = pixel(context, colours.edge);
  const queues = colour === 'queue' ? queueColours() : new Map();
  const { size } = layout;
  const image = context.createImageData(width, height);
  const picture = new Uint32Array(image.data.buffer);
  const rectangle = (x, y, across, value, high = size) => {
    const [left, right] = [Math.round(x * scale), Math.min(width, Math.round((x + across) * scale))];
    const [top, bottom] = [Math.round(y * scale), Math.min(height, Math.round((y + high) * scale))];
    for (let row = top * width; row < bottom * width; row += width) {
      for (let at = row + left; at < row + right; at += 1) picture[at] = value;
    }
  };
  for (const { card, x, y } of layout.cells) {
    // The edge keeps a free card apart from the ground.
    rectangle(x, y, size, edge);
    rectangle(x + 1, y + 1, size - 2, free, size - 2);
    for (const [from, to, k] of parts(card, colour, queues)) {
      // A share that is there is seen.
      const left = Math.round(from * size);
      rectangle(x + left, y, Math.max(1, Math.round(to * size) - left - (size > 20 ? 1 : 0)), pixels[k]);
    }
  }
  context.putImageData(image, 0, 0);
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.fillStyle = colours.text;
  context.font = '13px system-ui, sans-serif';
  for (const [name, y] of layout.titles) context.fillText(name, 0, y + 13);
  ring(context, colours);
  drawn = performance.now() - begin;
  canvas.dataset.drawn = drawn.toFixed(1);
}

/** Around the cell that has the focus. */
function ring(context, colours) {
  const cell = layout.cells[chosen];
  if (!cell || document.activeElement?.id !== 'map') return;
  context.strokeStyle = colours.line;
  context.lineWidth = 3;
  context.strokeRect(cell.x - 1, cell.y - 1, layout.size + 2, layout.size + 2);
}

function words({ card }) {
  const used = card.used < 0 ? 'use not known' : `${number(card.used)} used`;
  const shares = card.shares.map((share) => `${number(share.kept)} MiB${share.queue ? ` of ${share.queue}` : ''}${share.fence ? `, ${FENCES[share.fence]}` : ''}${share.used < 0 ? '' : `, ${number(share.used)} used`}`);
  return [`${card.node} / ${card.index}`, card.product, `${number(card.granted)} of ${number(card.grantable)} MiB granted, ${used}`, STATES[card.state],
    shares.length ? `${shares.length} ${shares.length === 1 ? 'share' : 'shares'}: ${shares.slice(0, 6).join('; ')}${shares.length > 6 ? ' ...' : ''}` : 'free'].join(' · ');
}

/** The cell at a point of the canvas; -1: none. */
function cellAt(x, y) {
  const row = layout.rows.findLastIndex(([, top]) => layout.cells.length && top <= y);
  if (row < 0) return -1;
  const [first, top] = layout.rows[row];
  const end = layout.rows[row + 1]?.[0] ?? layout.cells.length;
  if (y > top + layout.size) return -1;
  for (let at = first; at < end; at += 1) if (x >= layout.cells[at].x && x <= layout.cells[at].x + layout.size) return at;
  return -1;
}

function tell(at, canvas) {
  const tip = document.getElementById('tip');
  const cell = layout.cells[at];
  if (!tip || !cell) {
    if (tip) tip.hidden = true;
    return;
  }
  tip.hidden = false;
  tip.textContent = visible(words(cell));
  const left = canvas.offsetLeft + cell.x;
  tip.style.left = `${Math.max(0, Math.min(left, canvas.offsetLeft + layout.width - 380))}px`;
  tip.style.top = `${canvas.offsetTop + cell.y + layout.size + 8}px`;
}

/** One row up or down: the cell nearest above or below. */
function vertical(step) {
  const row = layout.rows.findLastIndex(([first]) => first <= chosen) + step;
  const target = layout.rows[row];
  if (!target) return chosen;
  const end = layout.rows[row + 1]?.[0] ?? layout.cells.length;
  const { x } = layout.cells[chosen];
  let best = target[0];
  for (let at = target[0]; at < end; at += 1) if (Math.abs(layout.cells[at].x - x) < Math.abs(layout.cells[best].x - x)) best = at;
  return best;
}

const open = (at) => {
  const card = layout.cells[at]?.card;
  if (card) location.hash = `#/card/${encodeURIComponent(card.node)}/${card.index}`;
};

let colourNow = 'granted';
let byNow = 'node';

function listeners() {
  const focus = (canvas) => {
    draw(colourNow);
    tell(chosen, canvas);
    const cell = layout.cells[chosen];
    if (!cell) return;
    const top = canvas.getBoundingClientRect().top + cell.y;
    if (top < 0 || top > window.innerHeight - 80) window.scrollBy(0, top - window.innerHeight / 2);
  };
  return {
    onpointermove: (event) => tell(cellAt(event.offsetX, event.offsetY), event.currentTarget),
    onpointerleave: (event) => { if (document.activeElement !== event.currentTarget) document.getElementById('tip').hidden = true; },
    onclick: (event) => open(cellAt(event.offsetX, event.offsetY)),
    onfocus: (event) => focus(event.currentTarget),
    onblur: () => { document.getElementById('tip').hidden = true; draw(colourNow); },
    onkeydown: (event) => {
      const most = layout.cells.length - 1;
      const to = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, ArrowUp: vertical(-1), ArrowDown: vertical(1), Home: 0, End: most }[event.key];
      if (event.key === 'Enter') open(chosen);
      if (event.key === 'Escape') document.getElementById('tip').hidden = true;
      if (to === undefined) return;
      event.preventDefault();
      chosen = Math.max(0, Math.min(most, to));
      focus(event.currentTarget);
    },
  };
}

function legend(colour) {
  const cards = [...model.nodes.values()].flatMap((node) => node.cards);
  const shares = () => cards.flatMap((card) => card.shares);
  const entry = (k, text, count) => [k, count === undefined ? text : `${text}: ${number(count)}`];
  const entries = {
    granted: () => [entry(2, 'granted'), entry(8, 'another share'), entry('free', 'free')],
    used: () => [entry(2, 'in use'), entry('free', 'not in use'), entry(6, 'agent disconnected', cards.filter((card) => card.used < 0).length)],
    idle: () => [0, 1, 2, 3, 4].map((at) => entry(10 + at, ['up to 20 % of a share unused', 'up to 40 %', 'up to 60 %', 'up to 80 %', 'more'][at])).concat([entry(6, 'not known')]),
    fence: () => [4, 3, 2, 1, 0].map((at) => entry([6, 5, 1, 0, 2][at], FENCES[at], shares().filter((share) => share.fence === at).length)),
    health: () => STATES.map((text, at) => entry(at ? [0, 6, 1, 3, 4, 5][at] : 2, text, cards.filter((card) => card.state === at).length)),
    queue: () => [...queueColours()].map(([name, at]) => entry(at, name)).concat([entry(6, 'others')]),
  }[colour]();
  return h('ul', { class: 'legend', id: 'legend' }, entries.map(([k, text]) => h('li', {}, h('i', { class: k === 'free' ? 'swatch free' : k >= 10 ? `swatch h${k - 10}` : `swatch k${k}` }), text)));
}

/** Sums of each group, a page of them at a time. */
function summary(groups, by, span) {
  const sum = (cards, of) => cards.reduce((all, card) => all + of(card), 0);
  const rows = groups.slice(span.from, span.from + GROUPS).map(([name, cards]) => ({
    name, cards: cards.length, grantable: sum(cards, (card) => card.grantable), granted: sum(cards, (card) => card.granted),
    used: sum(cards, (card) => Math.max(0, card.used)), shares: sum(cards, (card) => card.shares.length),
    idle: sum(cards, (card) => sum(card.shares, (share) => (share.used < 0 ? 0 : Math.max(0, share.kept - share.used)))),
    trouble: cards.filter((card) => card.state > 1).length,
  }));
  const title = { node: 'Node', product: 'Product' }[by] ?? by;
  const link = (row) => (by === 'node' || by === 'product' ? h('a', { href: `#/cards?${query({ filter: row.name })}` }, row.name) : row.name);
  return table('', span, `Cards by ${title.toLowerCase()}`, [
    [title, null, '', link], ['Cards', null, 'num', (row) => number(row.cards)], ['Shares', null, 'num', (row) => number(row.shares)],
    ['Granted', null, 'num', (row) => `${memory(row.granted)} of ${memory(row.grantable)}`], ['Used', null, 'num', (row) => memory(row.used)],
    ['Granted but idle', null, 'num', (row) => memory(row.idle)], ['With problems', null, 'num', (row) => number(row.trouble)],
  ], rows);
}

/** The picture and the table behind it. */
export function fleet(data, { parameters, span }) {
  take(data);
  const colour = COLOURS[parameters.get('colour')] ? parameters.get('colour') : 'granted';
  const by = ['product', ...model.keys].includes(parameters.get('group')) ? parameters.get('group') : 'node';
  colourNow = colour;
  byNow = by;
  const groups = grouped(by);
  const total = groups.reduce((sum, [, cards]) => sum + cards.length, 0);
  const go = (change) => {
    const now = Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''));
    location.hash = `#/fleet?${query({ ...now, from: 0, ...change })}`;
  };
  const choice = (id, text, values, value) => h('label', {}, `${text} `, h('select', { id, onchange: (event) => go({ [id]: event.target.value }) },
    values.map(([key, words]) => h('option', { value: key, selected: key === value }, words))));
  const canDraw = Boolean(document.createElement('canvas').getContext?.('2d'));
  const hint = 'A cell is a card; its parts are shares. Arrow keys go from card to card, Enter opens one.';
  const pages = groups.length > GROUPS && h('div', { class: 'pager' },
    h('button', { id: 'groups-previous', disabled: span.from === 0, onclick: () => go({ from: Math.max(0, Number(new URLSearchParams(location.hash.split('?')[1]).get('from') ?? 0) - GROUPS) }) }, 'Previous'),
    h('span', {}, `${number(span.from + 1)} to ${number(Math.min(groups.length, span.from + GROUPS))} of ${number(groups.length)}`),
    h('button', { id: 'groups-next', disabled: span.from + GROUPS >= groups.length, onclick: () => go({ from: Number(new URLSearchParams(location.hash.split('?')[1]).get('from') ?? 0) + GROUPS }) }, 'Next'));
  return ['Fleet', [
    h('form', { class: 'tools', onsubmit: (event) => event.preventDefault() }, choice('colour', 'Colour', Object.entries(COLOURS), colour),
      choice('group', 'Group by', [['node', 'node'], ['product', 'product'], ...model.keys.map((key) => [key, key])], by), h('span', { id: 'count' }, `${number(total)} cards on ${number(model.nodes.size)} nodes`)),
    canDraw ? legend(colour) : h('p', { id: 'no-canvas' }, 'This browser does not support canvas: here is the same as a table.'),
    canDraw ? h('div', { class: 'map' }, h('canvas', { id: 'map', tabindex: 0, role: 'application', 'aria-roledescription': 'map of cards', 'aria-label': `${number(total)} cards, coloured by ${COLOURS[colour].toLowerCase()}`, 'aria-describedby': 'map-hint', ...listeners() }),
      h('p', { id: 'tip', role: 'status', hidden: true })) : h('p', {}, ''),
    h('p', { id: 'map-hint' }, canDraw ? hint : ''),
    h('details', { id: 'as-table', open: !canDraw }, h('summary', {}, 'As a table'), summary(groups, by, span), pages || ''),
  ]];
}

/** Draws what `fleet` has put on the page. */
export function fleetAfter() {
  const canvas = document.getElementById('map');
  if (!canvas) return;
  const width = Math.max(240, Math.floor(canvas.parentElement.clientWidth));
  const groups = grouped(byNow);
  layout = layouts.get(byNow);
  if (layout?.groups !== groups || layout.width !== width) {
    layout = { ...arrange(groups, width), groups };
    layouts.set(byNow, layout);
  }
  chosen = Math.min(chosen, Math.max(0, layout.cells.length - 1));
  draw(colourNow);
  if (document.activeElement === canvas) tell(chosen, canvas);
}
