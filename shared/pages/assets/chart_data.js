// The points of one line of a chart: growing arrays, exponential smoothing, search by x.

const LARGEST = 1e150; // differences and squares stay finite
const isUsable = (value) => typeof value === "number" && Math.abs(value) <= LARGEST;

/** One line. Made by `Chart.addSeries`. */
export class Series {
  constructor(name, { look, smoothing, onChange }) {
    Object.assign(this, { name, look, smoothing, onChange, visible: true, length: 0, weight: 0 });
    for (const key of ["xs", "raw", "smooth"]) this[key] = new Float64Array(256);
    this.restartSmoothing();
  }

  /**
   * Add points, or one. A y that is no number up to `LARGEST` is a gap.
   * @param {number|ArrayLike<number>} xs such numbers, none smaller than the one before it
   * @param {unknown} ys
   * @throws {RangeError} nothing is added
   */
  append(xs, ys) {
    const [newXs, newYs] = typeof xs === "number" ? [[xs], [ys]] : [xs, ys];
    if (newXs.length !== newYs.length) throw new RangeError(`${newXs.length} xs for ${newYs.length} ys`);
    let last = this.length ? this.xs[this.length - 1] : -Infinity;
    for (let i = 0; i < newXs.length; i += 1) {
      if (!isUsable(newXs[i]) || newXs[i] < last) throw new RangeError(`x ${newXs[i]} cannot follow ${last}`);
      last = newXs[i];
    }
    this.reserve(this.length + newXs.length);
    for (let i = 0; i < newXs.length; i += 1) {
      this.xs[this.length] = newXs[i];
      this.raw[this.length] = isUsable(newYs[i]) ? newYs[i] : NaN;
      this.length += 1;
    }
    this.onChange();
  }

  /** Replace all points. */
  set(xs, ys) {
    this.length = 0;
    this.restartSmoothing();
    this.append(xs, ys);
  }

  reserve(length) {
    if (length <= this.xs.length) return;
    for (const key of ["xs", "raw", "smooth"]) {
      const larger = new Float64Array(2 * length);
      larger.set(this[key]);
      this[key] = larger;
    }
  }

  restartSmoothing() {
    Object.assign(this, { smoothed: 0, average: 0, correction: 1 });
  }

  /**
   * Bring `smooth` up to date: an exponential moving average, divided by the sum of its weights as in Adam (Kingma and
   * Ba 2015, section 3), so that it does not begin near zero. Gaps stay gaps.
   * @param {number} weight of what came before, below 1
   */
  smoothBy(weight) {
    if (weight !== this.weight) this.restartSmoothing();
    this.weight = weight;
    for (; this.smoothed < this.length; this.smoothed += 1) {
      const y = this.raw[this.smoothed];
      if (!Number.isNaN(y)) {
        this.average = weight * this.average + (1 - weight) * y;
        this.correction *= weight;
      }
      this.smooth[this.smoothed] = Number.isNaN(y) ? NaN : this.average / (1 - this.correction);
    }
  }

  search(goesBefore) {
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (goesBefore(this.xs[middle])) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The index of the first point at `x` or after it. */
  indexFrom(x) {
    return this.search((other) => other < x);
  }

  /** The index of the first point after `x`. */
  indexAfter(x) {
    return this.search((other) => other <= x);
  }

  /** The nearest xs on both sides, and `x` where it occurs. */
  xsAround(x) {
    const [from, after] = [this.indexFrom(x), this.indexAfter(x)];
    return [from - 1, from, after].filter((i) => i >= 0 && i < this.length).map((i) => this.xs[i]);
  }

  /** The last point at `x` or before it. @returns {{x: number, raw: number, smooth: number}|null} */
  at(x) {
    const i = this.indexAfter(x) - 1;
    return i < 0 ? null : { x: this.xs[i], raw: this.raw[i], smooth: this.smooth[i] };
  }
}
