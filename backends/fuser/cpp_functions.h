// Functions of lanes. Those of float32 are polynomials, to 2 units in the last place; others, the C library's.
//
// Coefficients: weighted least squares until the error is even (Lawson's algorithm), in float32. The reductions of
// arguments: Cody and Waite, "Software Manual for the Elementary Functions", 1980. `exp` and `erf` by way of each
// other: erf(x) = 1 - exp(-x q(x)).

// a * b + c, rounded once. Nothing else is contracted, as in ATen: x * x - x * x is 0.
#if defined(__FMA__) && defined(__GNUC__) && !defined(__clang__)
#if BYTES == 64
INLINE f32 fma(f32 a, f32 b, f32 c) { return (f32)__builtin_ia32_vfmaddps512_mask(a, b, c, (uint16_t)-1, 4); }
#elif BYTES == 32
INLINE f32 fma(f32 a, f32 b, f32 c) { return (f32)__builtin_ia32_vfmaddps256(a, b, c); }
#else
INLINE f32 fma(f32 a, f32 b, f32 c) { return (f32)__builtin_ia32_vfmaddps(a, b, c); }
#endif
#elif defined(__clang__) && (defined(__FMA__) || defined(__aarch64__))
INLINE f32 fma(f32 a, f32 b, f32 c) { return __builtin_elementwise_fma(a, b, c); }
#elif defined(__aarch64__)
INLINE f32 fma(f32 a, f32 b, f32 c) {
  return by_lane([](float x, float y, float z) { return __builtin_fmaf(x, y, z); }, a, b, c);
}
#else  // products are exact in float64
INLINE f32 fma(f32 a, f32 b, f32 c) { return to<f32>(to<f64>(a) * to<f64>(b) + to<f64>(c)); }
#endif
INLINE f32 fma(f32 a, f32 b, float c) { return fma(a, b, all(c)); }
INLINE f32 fma(f32 a, float b, f32 c) { return fma(a, all(b), c); }
INLINE f32 fma(f32 a, float b, float c) { return fma(a, all(b), all(c)); }
// The factor of the highest power first.
template <class... C>
INLINE f32 polynomial(f32 x, float highest, C... factors) {
  f32 p = all(highest);
  ((p = fma(p, x, (float)factors)), ...);
  return p;
}

template <class V, class = element_of<V>> INLINE i32 is_nan(V x) { return x != x; }
template <class V, class = element_of<V>> INLINE V larger(V a, V b) { return select((a > b) | is_nan(a), a, b); }
template <class V, class = element_of<V>> INLINE V smaller(V a, V b) { return select((a < b) | is_nan(a), a, b); }
INLINE i32 larger(i32 a, i32 b) { return a > b ? a : b; }
INLINE i64 larger(i64 a, i64 b) { return select(a > b, a, b); }
INLINE i32 smaller(i32 a, i32 b) { return a < b ? a : b; }
INLINE i64 smaller(i64 a, i64 b) { return select(a < b, a, b); }

INLINE i32 absolute(i32 x) { return x < 0 ? -x : x; }
INLINE i64 absolute(i64 x) { return select(x < all((int64_t)0), -x, x); }
INLINE f32 absolute(f32 x) { return as<f32>(as<i32>(x) & 0x7fffffff); }
INLINE f64 absolute(f64 x) { return as<f64>(as<i64>(x) & all((int64_t)0x7fffffffffffffff)); }
INLINE f32 signed_as(f32 x, f32 sign) { return as<f32>(as<i32>(x) | (as<i32>(sign) & (int32_t)0x80000000)); }
INLINE f64 signed_as(f64 x, f64 sign) { return as<f64>(as<i64>(x) | (as<i64>(sign) & all(INT64_MIN))); }
template <class V, class = element_of<V>> INLINE i32 is_infinite(V x) { return absolute(x) == all((element_of<V>)INFINITY); }

// Integers: no division ends the process.
template <class V, class = element_of<V>>
INLINE V divided(V a, V b) {
  typedef element_of<V> T;
  return by_lane([](T x, T y) { return y == 0 || y == -1 ? (T)(y ? 0 - (uint64_t)x : x) : (T)(x / y); }, a, b);
}

// To integers, of the same type.
INLINE f32 nearest(f32 x) {
  f32 large = signed_as(all(0x1p23f), x);
  return absolute(x) < all(0x1p23f) ? signed_as(absolute((x + large) - large), x) : x;
}
INLINE f64 nearest(f64 x) {
  f64 large = signed_as(all(0x1p52), x);
  return select(absolute(x) < all(0x1p52), signed_as(absolute((x + large) - large), x), x);
}
template <class V, class = element_of<V>>
INLINE V below(V x) {
  typedef element_of<V> T;
  V n = nearest(x);
  return select(n > x, n - all((T)1), n);
}
template <class V, class = element_of<V>> INLINE V above(V x) { return -below(-x); }
template <class V, class = element_of<V>> INLINE V towards_zero(V x) { return signed_as(below(absolute(x)), x); }

// x / y, where y is the same for a whole row: the quotient by way of 1 / y is corrected by what is left, and is the same
// but for a rounding in some millions (Markstein, "Computation of elementary functions on the IBM RISC System/6000
// processor", 1990), as long as nothing gets too large or too small.
INLINE f32 over(f32 x, f32 y) {
  f32 size = absolute(y), inverse = 1.0f / y;
  if (any((size < 0x1p-60f) | ~(size < 0x1p60f))) return x / y;
  f32 quotient = x * inverse, better = fma(fma(-quotient, y, x), inverse, quotient);
  return absolute(quotient) < all(INFINITY) ? better : quotient;
}
INLINE f64 over(f64 x, f64 y) { return x / y; }

// By a loop over an array, of which the compiler makes vectors.
INLINE f32 square_root(f32 x) { return by_lane([](float v) { return __builtin_sqrtf(v); }, x); }
INLINE f64 square_root(f64 x) { return by_lane([](double v) { return __builtin_sqrt(v); }, x); }

INLINE f32 power_of_two(i32 n) { return as<f32>((n + 127) << 23); }
// x * 2**n, for n that one factor does not reach; n is rounded, and t is n + ROUNDING.
INLINE f32 scaled(f32 x, f32 n, f32 t) {
#if BYTES == 64 && !defined(__clang__)
  return (f32)__builtin_ia32_scalefps512_mask(x, n, x, (uint16_t)-1, 4);
#else
  i32 whole = as<i32>(t) - 0x4b400000, part = whole >> 1;
  return x * power_of_two(part) * power_of_two(whole - part);
#endif
}
constexpr float ROUNDING = 12582912.0f, LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;

// exp(r) - 1 - r, over r * r, for |r| <= ln(2) / 2.
INLINE f32 exponential_rest(f32 r) {
  f32 p = polynomial(r, 0x1.6a234ep-10f, 0x1.123a6cp-7f, 0x1.5558f4p-5f, 0x1.555490p-3f);
  return fma(p, r, 0x1.fffffcp-2f);
}
INLINE f32 exponential(f32 x) {
  x = 89.0f < x ? all(89.0f) : x;
  x = -104.0f > x ? all(-104.0f) : x;
  f32 t = fma(x, LOG2_E, ROUNDING), n = t - ROUNDING;
  f32 r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x));
  return scaled(fma(fma(exponential_rest(r), r, 1.0f), r, 1.0f), n, t);
}
INLINE f32 exponential_less_one(f32 x) {
  f32 y = 89.0f < x ? all(89.0f) : x;
  y = -18.0f > y ? all(-18.0f) : y;
  f32 t = fma(y, LOG2_E, ROUNDING), n = t - ROUNDING;
  f32 r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, y));
  f32 p = polynomial(r, 0x1.a032c8p-13f, 0x1.6d7298p-10f, 0x1.11118ap-7f, 0x1.5554b0p-5f, 0x1.555554p-3f, 0.5f);
  f32 s = power_of_two(as<i32>(t) - 0x4b400000 - 1), q = fma(p * r, r, r);
  f32 found = fma(q, s, s - 0.5f) * 2.0f;
  return absolute(x) < all(0x1p-26f) ? x : found;
}
INLINE f32 exponential_of_two(f32 x) {
  x = 129.0f < x ? all(129.0f) : x;
  x = -151.0f > x ? all(-151.0f) : x;
  f32 t = x + ROUNDING, n = t - ROUNDING, r = (x - n) * 0.693147182f;
  return scaled(fma(fma(exponential_rest(r), r, 1.0f), r, 1.0f), n, t);
}

// log(1 + f) for 2/3 <= 1 + f < 4/3.
INLINE f32 logarithm_near_one(f32 f) {
  f32 p = polynomial(f, 0x1.ebcf12p-4f, -0x1.071132p-3f, 0x1.b87e98p-4f, -0x1.f389f6p-4f, 0x1.24f48ap-3f,
      -0x1.559908p-3f, 0x1.99977ep-3f, -0x1.ffff0ep-3f, 0x1.555556p-2f);
  f32 s = f * f;
  return fma(p * s, f, fma(s, -0.5f, f));
}
// n and f of which x + rest = 2**n * (1 + f), for positive x.
INLINE void decomposed(f32 x, f32& n, f32& f, f32 rest = f32{}) {
  i32 small = x < 0x1p-126f;
  x = small ? x * 0x1p23f : x;
  i32 bits = as<i32>(x), k = (bits - 0x3f2aaaab) >> 23;
  n = to<f32>(k) + (small ? all(-23.0f) : f32{});
  f = (as<f32>(bits - (k << 23)) - 1.0f) + rest * power_of_two(k > 126 ? all(-126) : -k);
}
INLINE f32 with_limits_of_logarithm(f32 x, f32 value) {
  value = x == INFINITY ? x : value;
  value = x == 0.0f ? all(-INFINITY) : value;
  return x < 0.0f ? all(NAN) : x != x ? x : value;
}
INLINE f32 logarithm(f32 x) {
  f32 n, f;
  decomposed(x, n, f);
  f32 l = logarithm_near_one(f);
  return with_limits_of_logarithm(x, fma(n, LN2_HIGH, fma(n, LN2_LOW, l)));
}
INLINE f32 logarithm_of_one_and(f32 x) {
  f32 u = x + 1.0f, rest = x > 1.0f ? 1.0f - (u - x) : x - (u - 1.0f), n, f;
  rest = absolute(u) < all(0x1p100f) ? rest : f32{};
  decomposed(u, n, f, rest);
  f32 l = logarithm_near_one(f);
  f32 found = with_limits_of_logarithm(u, fma(n, LN2_HIGH, fma(n, LN2_LOW, l)));
  return absolute(x) < all(0x1p-20f) ? fma(x * x, -0.5f, x) : found;
}
INLINE f32 logarithm_to_base(f32 x, float high, float low, float of_e_high, float of_e_low) {
  f32 n, f;
  decomposed(x, n, f);
  f32 l = logarithm_near_one(f);
  return with_limits_of_logarithm(x, fma(n, high, fma(l, of_e_high, fma(n, low, l * of_e_low))));
}
INLINE f32 logarithm_to_base_2(f32 x) { return logarithm_to_base(x, 1.0f, 0.0f, 1.44269502f, 1.92596303e-8f); }
INLINE f32 logarithm_to_base_10(f32 x) {
  return logarithm_to_base(x, 0.301025390625f, 4.60503906e-6f, 0.434294492f, -1.01052977e-8f);
}

// sin(x + quarters * pi / 2).
INLINE f32 circular(f32 x, int quarters) {
  constexpr float LARGEST = 1e5f;  // beyond, three parts of pi / 2 do not tell what is left
  if (__builtin_expect(any(absolute(x) > all(LARGEST)), 0))
    return quarters ? by_lane([](float v) { return (float)::cos((double)v); }, x)
                    : by_lane([](float v) { return (float)::sin((double)v); }, x);
  f32 t = fma(x, 0.636619747f, ROUNDING), n = t - ROUNDING;
  i32 k = as<i32>(t) + quarters;
  f32 r = fma(n, -0x1.921fb6p+0f, x);
  r = fma(n, 0x1.777a5cp-25f, r);
  r = fma(n, 0x1.ee59dap-50f, r);
  f32 s = r * r;
  f32 sine = polynomial(s, 0x1.6ccf5cp-19f, -0x1.a00f74p-13f, 0x1.111108p-7f, -0x1.555556p-3f);
  sine = fma(sine * s, r, r);
  f32 cosine = fma(s, 0x1.99e868p-16f, -0x1.6c0c28p-10f);
  cosine = fma(cosine, s, 0x1.55554ap-5f);
  cosine = fma(cosine * s, s, fma(s, -0.5f, 1.0f));
  f32 found = (k & 1) != 0 ? cosine : sine;
  return as<f32>(as<i32>(found) ^ (k & 2) << 30);
}
INLINE f32 sine(f32 x) { return select(x == 0.0f, x, circular(x, 0)); }
INLINE f32 cosine(f32 x) { return circular(x, 1); }

INLINE f32 hyperbolic_tangent(f32 x) {
  f32 a = absolute(x);
  f32 t = exponential_less_one(2.0f * (a > 10.0f ? all(10.0f) : a));
  return signed_as(t / (t + 2.0f), x);
}
INLINE f32 error_function(f32 x) {
  f32 a = absolute(x), s = x * x;
  f32 near = polynomial(s, 0x1.5ac320p-14f, -0x1.a99ef0p-11f, 0x1.54b5e4p-8f, -0x1.b80cb4p-6f, 0x1.ce2df4p-4f,
      -0x1.812742p-2f, 0x1.06eba8p-3f);
  near = fma(near, x, x);
  f32 b = a > 4.0f ? all(4.0f) : a;
  f32 far = polynomial(b, 0x1.8efb4ap-17f, -0x1.596cc6p-12f, 0x1.e0f6b0p-9f, -0x1.8641b6p-6f, 0x1.b36b7cp-4f,
      0x1.452d3cp-1f, 0x1.20efc4p+0f);
  far = signed_as(1.0f - exponential(-(far * b)), x);
  return a < 0.9375f ? near : far;
}

#define OF_FLOAT_AND_DOUBLE(name, vectors, one)                                                                   \
  INLINE f32 name(f32 x) { return vectors(x); }                                                                   \
  INLINE f64 name(f64 x) { return by_lane([](double v) { return ::one(v); }, x); }
#define OF_LIBRARY(one)                                                                                           \
  INLINE f32 v_##one(f32 x) { return by_lane([](float v) { return ::one##f(v); }, x); }                           \
  INLINE f64 v_##one(f64 x) { return by_lane([](double v) { return ::one(v); }, x); }
OF_FLOAT_AND_DOUBLE(v_exp, exponential, exp)
OF_FLOAT_AND_DOUBLE(v_exp2, exponential_of_two, exp2)
OF_FLOAT_AND_DOUBLE(v_expm1, exponential_less_one, expm1)
OF_FLOAT_AND_DOUBLE(v_log, logarithm, log)
OF_FLOAT_AND_DOUBLE(v_log2, logarithm_to_base_2, log2)
OF_FLOAT_AND_DOUBLE(v_log10, logarithm_to_base_10, log10)
OF_FLOAT_AND_DOUBLE(v_log1p, logarithm_of_one_and, log1p)
OF_FLOAT_AND_DOUBLE(v_sin, sine, sin)
OF_FLOAT_AND_DOUBLE(v_cos, cosine, cos)
OF_FLOAT_AND_DOUBLE(v_tanh, hyperbolic_tangent, tanh)
OF_FLOAT_AND_DOUBLE(v_erf, error_function, erf)
OF_LIBRARY(tan) OF_LIBRARY(asin) OF_LIBRARY(acos) OF_LIBRARY(atan) OF_LIBRARY(sinh) OF_LIBRARY(cosh)
OF_LIBRARY(asinh) OF_LIBRARY(acosh) OF_LIBRARY(atanh) OF_LIBRARY(erfc)
#define OF_TWO(one)                                                                                               \
  INLINE f32 v_##one(f32 x, f32 y) { return by_lane([](float a, float b) { return ::one##f(a, b); }, x, y); }     \
  INLINE f64 v_##one(f64 x, f64 y) { return by_lane([](double a, double b) { return ::one(a, b); }, x, y); }
OF_TWO(atan2) OF_TWO(pow) OF_TWO(fmod)

static double log_of_gamma(double x) {
  int sign;  // not of all threads
  return lgamma_r(x, &sign);
}
// From Winitzki's approximation ("A handy approximation for the error function and its inverse", 2008), by Halley's
// method.
static double inverse_error_function(double y) {
  double a = ::fabs(y);
  if (!(a < 1)) return a == 1 ? y * INFINITY : NAN;
  double w = -::log1p(-a * a), b = 2 / (M_PI * 0.147) - w / 2, x = ::sqrt(::sqrt(b * b + w / 0.147) - b);
  for (int i = 0; i < 3; ++i) {
    double left = a < 0.5 ? ::erf(x) - a : (1 - a) - ::erfc(x);
    double step = left / (M_2_SQRTPI * ::exp(-x * x));
    x -= step / (1 + x * step);
  }
  return ::copysign(x, y);
}
INLINE f64 v_lgamma(f64 x) { return by_lane(log_of_gamma, x); }
INLINE f32 v_lgamma(f32 x) { return to<f32>(v_lgamma(to<f64>(x))); }
INLINE f64 v_erfinv(f64 x) { return by_lane(inverse_error_function, x); }
INLINE f32 v_erfinv(f32 x) { return to<f32>(v_erfinv(to<f64>(x))); }

template <class V, class = element_of<V>>
INLINE V sigmoid(V x) {
  typedef element_of<V> T;
  return all((T)1) / (all((T)1) + v_exp(-x));
}
template <class V, class = element_of<V>>
INLINE V remainder_of(V a, V b) {
  V rest = v_fmod(a, b), zero = rest - rest;
  return select((rest != zero) & ((rest < zero) != (b < zero)), rest + b, rest);
}
template <class V, class = element_of<V>>
INLINE V sign_of(V x) {
  V zero = {};
  return of_truth<V>(x > zero) - of_truth<V>(x < zero);
}

// Reductions while they are computed.
template <class V>
struct sum_of {
  V part{}, total{};
  void add(V x) { part = part + x; }
  void fold() { total = total + part, part = V{}; }
  V value() const { return total + part; }
};
template <class V> INLINE V lowest() {
  typedef element_of<V> T;
  return all((T)0.5 != 0 ? (T)-INFINITY : sizeof(T) == 4 ? (T)INT32_MIN : (T)INT64_MIN);
}
template <class V> INLINE V highest() {
  typedef element_of<V> T;
  return all((T)0.5 != 0 ? (T)INFINITY : sizeof(T) == 4 ? (T)INT32_MAX : (T)INT64_MAX);
}
#define REDUCTION(name, start, join)                                                                              \
  template <class V> struct name {                                                                                \
    V now = start;                                                                                                \
    void add(V x) { now = join; }                                                                                 \
    V value() const { return now; }                                                                               \
  };
REDUCTION(prod_of, all((element_of<V>)1), now * x)
REDUCTION(max_of, lowest<V>(), larger(now, x))
REDUCTION(min_of, highest<V>(), smaller(now, x))
#undef REDUCTION
