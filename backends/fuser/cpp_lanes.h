// Vectors of LANES elements of each type, as large as the machine has them for 4 bytes, by the extensions of gcc and clang.
//
// f32, i32, u32: one vector. f64, i64: two. Booleans are i32, 0 or -1. Half precision is computed with as f32.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif
#define OF(type, size) type __attribute__((vector_size(size)))
constexpr int LANES = BYTES / 4;

typedef OF(float, BYTES) f32;
typedef OF(int32_t, BYTES) i32;
typedef OF(uint32_t, BYTES) u32;
typedef OF(double, BYTES) half_f64;
typedef OF(int64_t, BYTES) half_i64;
typedef OF(int32_t, BYTES / 2) half_i32;
typedef OF(float, BYTES / 2) half_f32;
typedef OF(uint16_t, BYTES / 2) all_u16;
typedef OF(int8_t, BYTES / 4) all_i8;

template <class H>
struct two {
  H lo, hi;
};
typedef two<half_f64> f64;
typedef two<half_i64> i64;

// What is in memory.
struct half { uint16_t bits; };
struct bfloat { uint16_t bits; };
struct boolean { int8_t byte; };

// The same number in all lanes. Nothing is added to -0.
INLINE f32 all(float x) { return x - f32{}; }
INLINE i32 all(int32_t x) { return x - i32{}; }
INLINE f64 all(double x) { return {x - half_f64{}, x - half_f64{}}; }
INLINE i64 all(int64_t x) { return {x - half_i64{}, x - half_i64{}}; }
INLINE i32 all(bool x) { return all(-(int32_t)x); }

template <class A, class B>
INLINE A as(B x) {
  static_assert(sizeof(A) == sizeof(B));
  A r;
  memcpy(&r, &x, sizeof(r));
  return r;
}

template <class H, class V>
INLINE two<H> split(V x) {
  return as<two<H>>(x);
}
template <class V, class H>
INLINE V joined(H lo, H hi) {
  two<H> both{lo, hi};
  return as<V>(both);
}

INLINE i64 widened(i32 x) {
  auto parts = split<half_i32>(x);
  return {__builtin_convertvector(parts.lo, half_i64), __builtin_convertvector(parts.hi, half_i64)};
}
INLINE i32 narrowed(i64 x) {
  return joined<i32>(__builtin_convertvector(x.lo, half_i32), __builtin_convertvector(x.hi, half_i32));
}

#define TWO(op)                                                                                                   \
  template <class H> INLINE two<H> operator op(two<H> a, two<H> b) { return {a.lo op b.lo, a.hi op b.hi}; }
TWO(+) TWO(-) TWO(*) TWO(/) TWO(&) TWO(|) TWO(^) TWO(<<) TWO(>>)
#undef TWO
template <class H> INLINE two<H> operator-(two<H> a) { return {-a.lo, -a.hi}; }
template <class H> INLINE two<H> operator~(two<H> a) { return {~a.lo, ~a.hi}; }
#define TWO(op)                                                                                                   \
  template <class H> INLINE i32 operator op(two<H> a, two<H> b) {                                                 \
    return narrowed({(half_i64)(a.lo op b.lo), (half_i64)(a.hi op b.hi)});                                        \
  }
TWO(==) TWO(!=) TWO(<) TWO(<=) TWO(>) TWO(>=)
#undef TWO

INLINE f32 select(i32 c, f32 a, f32 b) { return c ? a : b; }
INLINE i32 select(i32 c, i32 a, i32 b) { return c ? a : b; }
template <class H>
INLINE two<H> select(i32 c, two<H> a, two<H> b) {
  i64 wide = widened(c);
  return {wide.lo ? a.lo : b.lo, wide.hi ? a.hi : b.hi};
}

typedef OF(int64_t, 16) sixteen;
// Whether a condition holds in any lane, in all.
INLINE bool any(i32 c) {
  sixteen parts[BYTES / 16], found;
  memcpy(parts, &c, BYTES);
  found = parts[0];
  for (int i = 1; i < BYTES / 16; ++i) found |= parts[i];
  return (found[0] | found[1]) != 0;
}
INLINE bool every(i32 c) { return !any(~c); }

template <class V> struct element;
template <> struct element<f32> { typedef float type; };
template <> struct element<i32> { typedef int32_t type; };
template <> struct element<f64> { typedef double type; };
template <> struct element<i64> { typedef int64_t type; };
template <class V> using element_of = typename element<V>::type;

// One lane after the other.
template <class V, class... W, class F>
INLINE V by_lane(F function, V first, W... rest) {
  typedef element_of<V> T;
  struct alignas(BYTES) Lanes { T x[LANES]; };
  auto in = as<Lanes>(first);
  Lanes out;
  [&](auto... others) {
    for (int i = 0; i < LANES; ++i) out.x[i] = function(in.x[i], others.x[i]...);
  }(as<Lanes>(rest)...);
  return as<V>(out);
}

template <class V>
INLINE V numbered() {
  typedef element_of<V> T;
  struct alignas(BYTES) Lanes { T x[LANES]; } out;
  for (int i = 0; i < LANES; ++i) out.x[i] = i;
  return as<V>(out);
}

// Conversions. What has no integer, has any.
template <class To, class From> struct conversion;
#define CONVERSION(To, From, expression)                                                                          \
  template <> struct conversion<To, From> { INLINE To of(From x) { return expression; } };
CONVERSION(f32, f32, x)
CONVERSION(f64, f64, x)
CONVERSION(i32, i32, x)
CONVERSION(i64, i64, x)
CONVERSION(f32, i32, __builtin_convertvector(x, f32))
CONVERSION(i32, f32, __builtin_convertvector(x, i32))
CONVERSION(i64, i32, widened(x))
CONVERSION(i32, i64, narrowed(x))
CONVERSION(f64, i64, (f64{__builtin_convertvector(x.lo, half_f64), __builtin_convertvector(x.hi, half_f64)}))
CONVERSION(i64, f64, (i64{__builtin_convertvector(x.lo, half_i64), __builtin_convertvector(x.hi, half_i64)}))
CONVERSION(f32, f64, joined<f32>(__builtin_convertvector(x.lo, half_f32), __builtin_convertvector(x.hi, half_f32)))
CONVERSION(f64, f32, (f64{__builtin_convertvector(split<half_f32>(x).lo, half_f64),
                          __builtin_convertvector(split<half_f32>(x).hi, half_f64)}))
CONVERSION(f64, i32, (conversion<f64, i64>::of(widened(x))))
CONVERSION(i32, f64, narrowed(conversion<i64, f64>::of(x)))
CONVERSION(f32, i64, joined<f32>(__builtin_convertvector(x.lo, half_f32), __builtin_convertvector(x.hi, half_f32)))
CONVERSION(i64, f32, (conversion<i64, f64>::of(conversion<f64, f32>::of(x))))
#undef CONVERSION
template <class To, class From> INLINE To to(From x) { return conversion<To, From>::of(x); }
template <class To> INLINE To of_truth(i32 x) { return to<To>(-x); }

// IEEE 754's half precision and bfloat16: to the nearest, ties to even.
INLINE f32 half_value(u32 h) {
  u32 magnitude = (h & 0x7fff) << 13;
  f32 value = as<f32>(magnitude) * 0x1p112f;
  value = as<f32>(magnitude) >= as<f32>(all((int32_t)0x0f800000)) ? as<f32>(magnitude | 0x7f800000) : value;
  return as<f32>(as<u32>(value) | (h & 0x8000) << 16);
}
INLINE u32 half_bits(f32 x) {
  u32 bits = as<u32>(x), sign = bits & 0x80000000, magnitude = bits ^ sign;
  f32 size = as<f32>(magnitude);
  u32 normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  u32 small = as<u32>(size + 0.5f) - 0x3f000000;  // the last bit of 0.5f is half precision's smallest number
  u32 found = size < 0x1p-14f ? small : normal;
  found = size >= 65520.0f ? all(0x7c00) - u32{} : found;
  found = size != size ? (magnitude >> 13 & 0x3ff) | 0x7e00 : found;
  return found | sign >> 16;
}
INLINE f32 bfloat_value(u32 h) { return as<f32>(h << 16); }
INLINE u32 bfloat_bits(f32 x) {
  u32 bits = as<u32>(x);
  u32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x != x ? all(0x7fc0) - u32{} : rounded;
}
INLINE f32 rounded_to(half, f32 x) { return half_value(half_bits(x)); }
INLINE f32 rounded_to(bfloat, f32 x) { return bfloat_value(bfloat_bits(x)); }

// Which lanes there are: all of them, or the first ones.
struct whole {
  static constexpr bool is_whole = true;
  INLINE int count() { return LANES; }
};
struct first {
  static constexpr bool is_whole = false;
  int n;
  int count() const { return n; }
};
template <class M>
INLINE i32 lanes_of(M there) {
  return numbered<i32>() < all((int32_t)there.count());
}
// A value, and another one in lanes that are not there.
template <class V, class M>
INLINE V within(M there, V value, V other) {
  if constexpr (M::is_whole) return value;
  else return select(lanes_of(there), value, other);
}

// Elements of memory as lanes, and the other way round.
template <class T, class V> struct plain {
  typedef V lanes;
  typedef T packed __attribute__((vector_size(sizeof(T) * LANES), aligned(sizeof(T)), may_alias));
  static constexpr bool is_split = sizeof(V) > BYTES;
  INLINE V one(T x) { return all(x); }
  INLINE V many(const T* p) {
    V r;
    memcpy(&r, p, sizeof(r));
    return r;
  }
  INLINE void put(T* p, V x) { memcpy(p, &x, sizeof(x)); }
};
template <class T> struct memory;
template <> struct memory<float> : plain<float, f32> {};
template <> struct memory<double> : plain<double, f64> {};
template <> struct memory<int32_t> : plain<int32_t, i32> {};
template <> struct memory<int64_t> : plain<int64_t, i64> {};
#define SIXTEEN(T, name)                                                                                          \
  template <> struct memory<T> {                                                                                  \
    typedef f32 lanes;                                                                                            \
    INLINE f32 one(T x) { return name##_value(u32{} + (uint32_t)x.bits); }                                        \
    INLINE f32 many(const T* p) {                                                                                 \
      all_u16 bits;                                                                                               \
      memcpy(&bits, p, sizeof(bits));                                                                             \
      return name##_value(__builtin_convertvector(bits, u32));                                                    \
    }                                                                                                             \
    INLINE void put(T* p, f32 x) {                                                                                \
      all_u16 bits = __builtin_convertvector(name##_bits(x), all_u16);                                            \
      memcpy(p, &bits, sizeof(bits));                                                                             \
    }                                                                                                             \
  };
SIXTEEN(half, half)
SIXTEEN(bfloat, bfloat)
#undef SIXTEEN
template <> struct memory<boolean> {
  typedef i32 lanes;
  INLINE i32 one(boolean x) { return all(x.byte != 0); }
  INLINE i32 many(const boolean* p) {
    all_i8 bytes;
    memcpy(&bytes, p, sizeof(bytes));
    return __builtin_convertvector(bytes, i32) != 0;
  }
  INLINE void put(boolean* p, i32 x) {
    all_i8 bytes = __builtin_convertvector(x & 1, all_i8);
    memcpy(p, &bytes, sizeof(bytes));
  }
};
template <class T> using lanes_for = typename memory<T>::lanes;

// Lane i is p[i * step]; 0 where there is none.
template <class T, class M>
INLINE lanes_for<T> load(const T* p, int64_t step, M there) {
  if (step == 0) return memory<T>::one(*p);
  if (M::is_whole && step == 1) return memory<T>::many(p);
  T found[LANES] = {};
  for (int i = 0; i < there.count(); ++i) found[i] = p[i * step];
  return memory<T>::many(found);
}
// The same where a condition holds.
template <class T, class M>
INLINE lanes_for<T> load_where(i32 condition, const T* p, int64_t step, M there) {
  i32 read = within(there, condition, i32{});
  if (!any(read)) return memory<T>::many((const T*)&(const T(&)[LANES])(const T[LANES]){});
  if (every(condition)) return load<T>(p, step, there);
  T found[LANES] = {};
  for (int i = 0; i < LANES; ++i)
    if (read[i]) found[i] = p[i * step];
  return memory<T>::many(found);
}
// Lane i is p[at[i]] where a condition holds, else 0.
template <class T, class M>
INLINE lanes_for<T> gather(i32 condition, const T* p, i64 at, M there) {
  int64_t place[LANES];
  memcpy(place, &at, sizeof(place));
  i32 read = within(there, condition, i32{});
  T found[LANES] = {};
  for (int i = 0; i < LANES; ++i)
    if (read[i]) found[i] = p[place[i]];
  return memory<T>::many(found);
}
template <class T, class M>
INLINE void store(T* p, int64_t step, M there, lanes_for<T> x) {
  if (M::is_whole && step == 1) return memory<T>::put(p, x);
  T found[LANES];
  memory<T>::put(found, x);
  for (int i = 0; i < there.count(); ++i) p[i * step] = found[i];
}

// One value of all lanes, in all lanes: neighbours first.
template <class V, class F>
INLINE V together(V x, F join) {
  typedef element_of<V> T;
  struct alignas(BYTES) Lanes { T x[LANES]; };
  for (int n = 1; n < LANES; n *= 2) {
    auto from = as<Lanes>(x);
    Lanes moved;
    for (int i = 0; i < LANES; ++i) moved.x[i] = from.x[i ^ n];
    x = join(x, as<V>(moved));
  }
  return x;
}
