// Lines over time as SVG, with a cursor for mouse and keyboard and the same numbers as a table.

import { h, listen, number, visible } from './dom.js';

const SVG = 'http://www.w3.org/2000/svg';
const H = 180;
const LEFT = 64;
const BOTTOM = 20;
const cursors = new Map(); // By chart: which point is read out.
/** As wide as the window has room for, so that text keeps its size. */
const room = () => Math.max(300, Math.min(1200, window.innerWidth - 48));

/** An SVG element. */
export function s(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) listen(element, key.slice(2), value);
    else element.setAttribute(key, typeof value === 'string' ? visible(value) : value);
  }
  const said = children.flat().filter((child) => child !== null && child !== undefined && child !== '');
  element.append(...said.map((child) => (typeof child === 'string' ? visible(child) : child)));
  return element;
}

/** A moment, as short as the range allows. */
export function moment(at, wide) {
  const date = new Date(at);
  const time = date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' });
  return wide ? `${date.toLocaleDateString('en-GB', { day: '2-digit', month: 'short' })} ${time}` : time;
}

const last = (values) => values.findLast((value) => value !== null) ?? null;

/** The next round number above; of MiB, a round number of GiB. */
function roof(most, base) {
  if (most <= 0) return 1;
  const part = most >= base ? base : 1;
  const unit = 10 ** Math.floor(Math.log10(most / part));
  return [1, 2, 4, 5, 10].map((step) => step * unit).find((step) => step * part >= most) * part;
}

function path(values, x, y, area) {
  let text = '';
  let begin = null;
  const close = (at) => { if (area && begin !== null) text += `L${x(at)} ${y(0)}L${x(begin)} ${y(0)}Z`; };
  values.forEach((value, at) => {
    if (value === null) {
      if (begin !== null) close(at - 1);
      begin = null;
      return;
    }
    text += `${begin === null ? 'M' : 'L'}${x(at)} ${y(value)}`;
    begin ??= at;
    // One point alone is a dot's width.
    if (values[at + 1] === null && values[at - 1] === null) text += `h1`;
  });
  if (begin !== null) close(values.length - 1);
  return text;
}

/**
 * A chart. `series`: [{name, values, kind: 'area' | 'line', k: colour}], all of one length, `null`
 * where nothing is known; the first value begins at `from`, each lasts `step` milliseconds.
 * `marks`: [{at, kind, words}]. `unit`: value → text.
 */
export function chart(id, title, series, { from, step, marks = [], unit = number, base = Infinity }) {
  const known = series.filter((one) => one.values?.some((value) => value !== null));
  if (!known.length || from === null) {
    return h('figure', { id: `figure-${id}` }, h('figcaption', {}, title), h('p', {}, 'Nothing is known of that time yet.'));
  }
  const W = room();
  const count = known[0].values.length;
  const most = roof(Math.max(...known.flatMap((one) => one.values.map((value) => value ?? 0))), base);
  const x = (at) => Math.round((LEFT + ((W - LEFT - 8) * (at + 0.5)) / count) * 10) / 10;
  const y = (value) => Math.round((8 + (H - 8 - BOTTOM) * (1 - value / most)) * 10) / 10;
  const wide = count * step > 36 * 3600e3;
  const when = (at) => from + at * step;
  const lines = [0, 0.5, 1].map((part) => [s('line', { class: 'grid', x1: LEFT, x2: W - 8, y1: y(most * part), y2: y(most * part) }),
    s('text', { x: LEFT - 6, y: y(most * part) + 4, 'text-anchor': 'end' }, unit(most * part))]).flat();
  const ticks = (W < 600 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1]).map((part) => Math.min(count - 1, Math.round(part * count))).map((at, tick, all) => s('text', {
    x: x(at), y: H - 4, 'text-anchor': tick === 0 ? 'start' : tick === all.length - 1 ? 'end' : 'middle' }, moment(when(at), wide)));
  const curves = known.map((one) => s('path', { class: `${one.kind ?? 'line'} k${one.k}`, d: path(one.values, x, y, one.kind === 'area') }));
  const shown = marks.map((mark) => ({ ...mark, place: Math.round((mark.at - from) / step - 0.5) })).filter((mark) => mark.place >= 0 && mark.place < count);
  const flags = shown.map((mark) => s('g', { class: `mark ${mark.kind}` }, s('title', {}, `${moment(mark.at, true)} ${mark.kind}: ${mark.words}`),
    s('line', { x1: x(mark.place), x2: x(mark.place), y1: 8, y2: H - BOTTOM }), s('circle', { cx: x(mark.place), cy: 8, r: 4 })));
  const at = Math.min(cursors.get(id) ?? count - 1, count - 1);
  const value = (one, place) => (one.values[place] === null ? 'not known' : unit(one.values[place]));
  const near = shown.filter((mark) => mark.place === at).map((mark) => `${mark.kind}: ${mark.words}`);
  const readout = [moment(when(at), true), ...known.map((one) => `${one.name} ${value(one, at)}`), ...near].join(' · ');
  const move = (to) => {
    cursors.set(id, Math.max(0, Math.min(count - 1, to)));
    window.dispatchEvent(new Event('redraw'));
  };
  // Of the elements as they are, not as they were when the listener came.
  const keys = (event) => {
    const size = Number(event.currentTarget.dataset.count);
    const now = Math.min(cursors.get(id) ?? size - 1, size - 1);
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: size - 1, PageUp: now - 10, PageDown: now + 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
  };
  const point = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const size = Number(event.currentTarget.dataset.count);
    const wide = event.currentTarget.viewBox.baseVal.width;
    const across = ((event.clientX - box.left) / box.width) * wide;
    move(Math.round(((across - LEFT) / (wide - LEFT - 8)) * size - 0.5));
  };
  const words = `${title}: ${known.map((one) => `${one.name} ${last(one.values) === null ? 'not known' : unit(last(one.values))}, at most ${unit(Math.max(...one.values.map((v) => v ?? 0)))}`).join('; ')}. Arrow keys read out single moments.`;
  const rows = [];
  for (let row = count - 1; row >= 0 && rows.length < 24; row -= Math.max(1, Math.floor(count / 24))) rows.push(row);
  return h('figure', { id: `figure-${id}` }, h('figcaption', {}, title),
    h('ul', { class: 'legend' }, known.map((one) => h('li', {}, h('i', { class: `swatch k${one.k}` }), one.name))),
    s('svg', { id: `chart-${id}`, class: 'chart', viewBox: `0 0 ${W} ${H}`, role: 'img', tabindex: 0, 'aria-label': words, 'data-count': count, onkeydown: keys, onpointermove: point },
      lines, curves, flags, s('line', { class: 'cursor', x1: x(at), x2: x(at), y1: 8, y2: H - BOTTOM }), ticks),
    h('p', { id: `read-${id}`, class: 'readout', role: 'status' }, readout),
    h('details', {}, h('summary', {}, 'As a table'), h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': title }, h('table', {}, h('caption', {}, title),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'From'), known.map((one) => h('th', { scope: 'col', class: 'num' }, one.name)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, h('th', { scope: 'row' }, moment(when(row), true)), known.map((one) => h('td', { class: 'num' }, value(one, row))))))))));
}
