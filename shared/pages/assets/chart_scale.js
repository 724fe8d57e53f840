// From values to pixels and back, linear and logarithmic, and the round values that an axis names.

const SHORT = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A number for people: 12,400, 2.345, 3e-4. @param {number} value @returns {string} */
export const formatNumber = (value) => {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-3)) return Number(value.toPrecision(4)).toExponential().replace("e+", "e");
  return (size >= 1e4 ? WHOLE : SHORT).format(value);
};

/** Hours, minutes and seconds, as in the tables of reports: 1:02:05. @param {number} seconds @returns {string} */
export const formatDuration = (seconds) => {
  const whole = Math.round(seconds);
  const two = (value) => String(value % 60).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60))}:${two(whole)}`;
};

const linearTicks = (low, high, most) => {
  const power = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => (high - low) / size <= most) ?? 20 * power;
  const first = Math.ceil(low / step - 1e-9);
  const ticks = Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
};

const logTicks = (low, high, most) => {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.ceil((last - first) / most);
  const powers = Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, i) => 10 ** (first + i * every));
  const choices = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]].map((factors) =>
    powers.flatMap((power) => factors.map((factor) => factor * power)).filter((tick) => tick >= low && tick <= high));
  const ticks = choices.find((choice) => choice.length <= most) ?? choices.at(-1);
  return ticks.length < 3 && high < 10 * low ? linearTicks(low, high, most) : ticks;
};

/** From a range, above 0 where `log`, to the pixels of its ends. */
export const makeScale = (log, [low, high], [from, to]) => {
  const map = log ? Math.log : (value) => value;
  const start = map(low);
  const factor = (to - from) / (map(high) - start);
  const back = (pixel) => start + (pixel - from) / factor;
  return {
    pixel: (value) => from + (map(value) - start) * factor,
    value: (pixel) => (log ? Math.exp(back(pixel)) : back(pixel)),
    ticks: (most) => (log ? logTicks : linearTicks)(low, high, Math.max(2, Math.floor(most))),
  };
};

/** The range to draw, never empty: `margin` is the part of it added at each end. @returns {[number, number]} */
export const widened = (log, low, high, margin) => {
  if (!(low <= high)) return log ? [0.1, 10] : [0, 1];
  const isFlat = high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high)); // but for rounding
  if (log) {
    const factor = isFlat ? 2 : (high / low) ** margin;
    return [low / factor, high * factor];
  }
  const extra = isFlat ? Math.abs(low) / 2 || 1 : (high - low) * margin;
  return [low - extra, high + extra];
};
