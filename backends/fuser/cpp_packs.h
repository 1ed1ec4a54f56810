// Several vectors at a time: while one waits for its last operation, the processor computes others.

template <class V, int N>
struct pack {
  V v[N];
};
template <int N>
struct wholes {
  static constexpr bool is_whole = true;
  INLINE int count() { return LANES; }
};

template <class A> struct size_of { static constexpr int n = 0; };
template <class V, int N> struct size_of<pack<V, N>> { static constexpr int n = N; };
template <class... A> constexpr int packed() {
  int n = 0;
  ((n = size_of<A>::n > n ? size_of<A>::n : n), ...);
  return n;
}
template <bool> struct enabled {};
template <> struct enabled<true> { typedef int type; };
template <class M> struct is_several { static constexpr bool value = false; };
template <int N> struct is_several<wholes<N>> { static constexpr bool value = true; };
template <class M> using only_one = typename enabled<!is_several<M>::value>::type;
template <class... A> using with_pack = typename enabled<(packed<A...>() > 0)>::type;

template <class A> INLINE A item(A x, int) { return x; }
template <class V, int N> INLINE V item(pack<V, N> x, int i) { return x.v[i]; }

// A function of vectors, of each of several.
template <class F, class... A>
INLINE auto lifted(F function, A... x) {
  constexpr int N = packed<A...>();
  pack<decltype(function(item(x, 0)...)), N> found;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) found.v[i] = function(item(x, i)...);
  return found;
}
#define BINARY(op)                                                                                                \
  template <class A, class B, with_pack<A, B> = 0> INLINE auto operator op(A a, B b) {                            \
    return lifted([](auto x, auto y) __attribute__((always_inline)) { return x op y; }, a, b);                    \
  }
BINARY(+) BINARY(-) BINARY(*) BINARY(/) BINARY(&) BINARY(|) BINARY(^) BINARY(<<) BINARY(>>)
BINARY(==) BINARY(!=) BINARY(<) BINARY(<=) BINARY(>) BINARY(>=)
#undef BINARY
template <class V, int N> INLINE auto operator-(pack<V, N> a) { return lifted([](auto x) { return -x; }, a); }
template <class V, int N> INLINE auto operator~(pack<V, N> a) { return lifted([](auto x) { return ~x; }, a); }
#define LIFTED(name)                                                                                              \
  template <class... A, with_pack<A...> = 0> INLINE auto name(A... a) {                                           \
    return lifted([](auto... x) __attribute__((always_inline)) { return name(x...); }, a...);                     \
  }
LIFTED(select) LIFTED(absolute) LIFTED(larger) LIFTED(smaller) LIFTED(is_nan) LIFTED(is_infinite) LIFTED(divided)
LIFTED(nearest) LIFTED(below) LIFTED(above) LIFTED(towards_zero) LIFTED(square_root) LIFTED(sigmoid) LIFTED(sign_of)
LIFTED(remainder_of) LIFTED(v_exp) LIFTED(v_exp2) LIFTED(v_expm1) LIFTED(v_log) LIFTED(v_log2) LIFTED(v_log10)
LIFTED(v_log1p) LIFTED(v_sin) LIFTED(v_cos) LIFTED(v_tan) LIFTED(v_asin) LIFTED(v_acos) LIFTED(v_atan) LIFTED(v_sinh)
LIFTED(v_cosh) LIFTED(v_tanh) LIFTED(v_asinh) LIFTED(v_acosh) LIFTED(v_atanh) LIFTED(v_erf) LIFTED(v_erfc)
LIFTED(v_erfinv) LIFTED(v_lgamma) LIFTED(v_atan2) LIFTED(v_pow) LIFTED(v_fmod) LIFTED(rounded_to) LIFTED(over)
#undef LIFTED
template <class To, class V, int N> INLINE auto to(pack<V, N> a) { return lifted([](auto x) { return to<To>(x); }, a); }
template <class To, class V, int N> INLINE auto of_truth(pack<V, N> a) {
  return lifted([](auto x) { return of_truth<To>(x); }, a);
}

// The number of a vector among several, for those functions that depend on it.
template <class F, int N>
INLINE auto of_each(F function, wholes<N>) {
  pack<decltype(function(0)), N> found;
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) found.v[i] = function(i);
  return found;
}
// start + step * lane.
template <class V, class M, only_one<M> = 0>
INLINE auto places(element_of<V> start, element_of<V> step, M) {
  return all(start) + numbered<V>() * all(step);
}
template <class V, int N>
INLINE auto places(element_of<V> start, element_of<V> step, wholes<N> there) {
  return of_each([=](int i) { return places<V>(start + i * LANES * step, step, whole{}); }, there);
}
template <class T, int N>
INLINE auto load(const T* p, int64_t step, wholes<N> there) {
  return of_each([=](int i) { return load(p + i * LANES * step, step, whole{}); }, there);
}
template <class C, class T, int N>
INLINE auto load_where(C condition, const T* p, int64_t step, wholes<N> there) {
  return of_each([=](int i) { return load_where(item(condition, i), p + i * LANES * step, step, whole{}); }, there);
}
template <class T, int N>  // one condition for all: the rows of this kernel are read or not
INLINE auto load_where(i32 condition, const T* p, int64_t step, wholes<N> there) {
  return of_each([=](int i) { return load_where(condition, p + i * LANES * step, step, whole{}); }, there);
}
template <class C, class T, class A, int N>
INLINE auto gather(C condition, const T* p, A at, wholes<N> there) {
  return of_each([=](int i) { return gather(item(condition, i), p, item(at, i), whole{}); }, there);
}
template <class T, class V, int N>
INLINE void store(T* p, int64_t step, wholes<N>, V x) {
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) store(p + i * LANES * step, step, whole{}, item(x, i));
}

template <class T, int N>
INLINE auto gather(i32 condition, const T* p, i64 at, wholes<N> there) {
  return of_each([=](int) { return gather(condition, p, at, whole{}); }, there);
}

// Have in the cache what the next row needs, while this one is computed.
template <class T, class M, only_one<M> = 0>
INLINE void fetch(const T* p, M) {
  __builtin_prefetch(p);
}
template <class T, int N>
INLINE void fetch(const T* p, wholes<N>) {
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) __builtin_prefetch(p + i * LANES);
}

// Vectors in arrays of a thread's own.
template <class V, class M, only_one<M> = 0>
INLINE V held(const element_of<V>* p, M) {
  V x;
  memcpy(&x, p, sizeof(x));
  return x;
}
template <class V, int N>
INLINE auto held(const element_of<V>* p, wholes<N> there) {
  return of_each([=](int i) { return held<V>(p + i * LANES, whole{}); }, there);
}
template <class T, class V, class M, only_one<M> = 0>
INLINE void hold(T* p, V x, M) {
  memcpy(p, &x, sizeof(x));
}
template <class T, class V, int N>
INLINE void hold(T* p, V x, wholes<N>) {
#pragma GCC unroll 8
  for (int i = 0; i < N; ++i) hold(p + i * LANES, item(x, i), whole{});
}

// What has been reduced, and more of it, as far as there is any.
template <class V, class M, class F, only_one<M> = 0>
INLINE void reduce(V& now, V x, V nothing, M there, F join) {
  now = join(now, within(there, x, nothing));
}
template <class V, class X, int N, class F>
INLINE void reduce(V& now, X x, V, wholes<N>, F join) {
  V found = item(x, 0);
#pragma GCC unroll 8
  for (int i = 1; i < N; ++i) found = join(found, item(x, i));
  now = join(now, found);
}
