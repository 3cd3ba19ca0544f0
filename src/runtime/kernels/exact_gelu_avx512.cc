// The loops of exact_gelu_loops.h for processors with AVX-512: the arithmetic of oneDNN's kernels (3.12, Apache-2.0,
// which the coefficients are from), operation by operation. Includes nothing whose inline functions others share,
// because it is compiled for these processors alone.
#include "runtime/kernels/exact_gelu_loops.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__)
#include <immintrin.h>

namespace abele::runtime::loops {
namespace {

constexpr int64_t kLanes = 16;

inline __m512 each(float x) { return _mm512_set1_ps(x); }
inline __m512 signOf(__m512 x) { return _mm512_and_ps(x, each(-0.0F)); }
inline __m512 negated(__m512 x) { return _mm512_xor_ps(x, each(-0.0F)); }

// Polynomials for erf(a / sqrt(2)) on pieces of a = |x|: the coefficients of a power lie side by side.
constexpr int kPowers = 6;
alignas(64) constexpr float kErf[kPowers][2 * kLanes] = {
    {-1.68473032e-15F,
     1.51883661e-08F,
     6.04414652e-08F,
     1.95800709e-07F,
     5.76551258e-07F,
     1.81367886e-06F,
     7.10810536e-06F,
     2.20107522e-05F,
     5.52256352e-05F,
     0.000183117503F,
     0.000649841328F,
     0.00173450669F,
     0.00378662022F,
     0.00834305119F,
     0.0127789555F,
     -0.00317682093F,
     -0.0691192001F,
     -0.270972043F,
     -0.547266126F,
     -0.399804354F,
     0.147876456F,
     0.777551234F,
     0.979418278F,
     1.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F},
    {0.797884583F, 0.797883928F, 0.797882497F, 0.797878921F, 0.797870338F, 0.797846615F, 0.797762811F,  0.79756546F,
     0.797186494F, 0.795948088F, 0.792244673F, 0.785046518F, 0.773357809F, 0.751190603F, 0.73278898F,   0.784667194F,
     0.971467674F, 1.4611516F,   2.02515841F,  1.79073596F,  1.00937247F,  0.230981886F, 0.0186735205F, 0.0F,
     1.0F,         0.0F,         0.0F,         0.0F,         0.0F,         0.0F,         0.0F,          0.0F},
    {-2.40583631e-06F,
     1.08417144e-05F,
     2.89676409e-05F,
     6.68237772e-05F,
     0.00014431536F,
     0.000326474663F,
     0.000858230225F,
     0.00190524384F,
     0.00363663235F,
     0.00844163168F,
     0.0202229246F,
     0.0393608548F,
     0.0660244524F,
     0.109234571F,
     0.139799759F,
     0.0722661838F,
     -0.139640495F,
     -0.615581691F,
     -1.07700634F,
     -0.928109586F,
     -0.481687307F,
     -0.0961773992F,
     -0.00678683911F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F},
    {-0.132912055F, -0.133077383F, -0.133192465F, -0.133393154F, -0.13374342F,  -0.134443596F, -0.136134386F,
     -0.138916165F, -0.142875552F, -0.15221408F,  -0.1709968F,   -0.196478829F, -0.226927698F, -0.269114465F,
     -0.294523537F, -0.250523865F, -0.130191594F, 0.101483591F,  0.290589511F,  0.243363842F,  0.11568559F,
     0.0200678855F, 0.0012350094F, 0.0F,          0.0F,          0.0F,          0.0F,          0.0F,
     0.0F,          0.0F,          0.0F,          0.0F},
    {-0.000722435943F,
     0.000458893453F,
     0.000825015595F,
     0.00135785958F,
     0.00215051882F,
     0.00349776214F,
     0.00619186787F,
     0.0098931957F,
     0.0144253373F,
     0.0235171374F,
     0.0385247208F,
     0.055516649F,
     0.0729237124F,
     0.0935536623F,
     0.104124852F,
     0.0897768661F,
     0.0555713102F,
     -0.000911210198F,
     -0.0397323705F,
     -0.0322541632F,
     -0.0139745874F,
     -0.00209773751F,
     -0.000112510286F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F},
    {0.0224418864F,
     0.0189668238F,
     0.0184998829F,
     0.0179330409F,
     0.0172145572F,
     0.0161763802F,
     0.014455351F,
     0.0124822361F,
     0.0104048746F,
     0.00685734302F,
     0.00204954576F,
     -0.00249000336F,
     -0.0064754039F,
     -0.0105179306F,
     -0.012278704F,
     -0.0104052182F,
     -0.00651133247F,
     -0.000993563561F,
     0.00219980814F,
     0.00172694004F,
     0.000678890501F,
     8.78636856e-05F,
     4.10472876e-06F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F,
     0.0F},
};
constexpr int kFirst = 1, kSaturated = 23, kNotANumber = 24;  // pieces
constexpr float kSaturation = 5.54259396F;                    // 1 from here on

inline __m512 coefficient(int power, __m512i piece) {
  return _mm512_permutex2var_ps(_mm512_load_ps(kErf[power]), piece, _mm512_load_ps(kErf[power] + kLanes));
}

inline __m512 gelu(__m512 x) {
  const __m512 a = _mm512_abs_ps(x);
  // An exponent has four pieces.
  __m512i piece =
      _mm512_srai_epi32(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_set1_epi32(static_cast<int>(0xC21FFFFFU))), 21);
  piece = _mm512_min_epi32(_mm512_max_epi32(piece, _mm512_set1_epi32(kFirst)), _mm512_set1_epi32(kNotANumber));
  piece =
      _mm512_mask_mov_epi32(piece, _mm512_cmp_ps_mask(each(kSaturation), a, _CMP_LT_OS), _mm512_set1_epi32(kSaturated));
  __m512 erf = coefficient(kPowers - 1, piece);
  for (int power = kPowers - 2; power >= 0; --power) erf = _mm512_fmadd_ps(erf, a, coefficient(power, piece));
  erf = _mm512_xor_ps(erf, signOf(x));
  return _mm512_mul_ps(_mm512_mul_ps(x, _mm512_add_ps(erf, each(1.0F))), each(0.5F));
}

// exp(x), 0 where that would be subnormal: 2^n * exp(r) with x = n * ln(2) + r.
inline __m512 exponential(__m512 x) {
  constexpr float kLeast = -87.3365479F, kMost = 88.7228394F;
  const __mmask16 vanishes = _mm512_cmp_ps_mask(x, each(kLeast), _CMP_LT_OS);
  x = _mm512_max_ps(_mm512_min_ps(x, each(kMost)), each(kLeast));
  const __m512 n =
      _mm512_roundscale_ps(_mm512_add_ps(_mm512_mul_ps(x, each(1.44269502F)), each(0.5F)), _MM_FROUND_TO_NEG_INF);
  const __m512 r = _mm512_fnmadd_ps(n, each(0.693147182F), x);
  // Half of the power, which is finite for the largest n; the product is doubled at last.
  __m512i power = _mm512_cvtps_epi32(_mm512_sub_ps(n, each(1.0F)));
  power = _mm512_slli_epi32(_mm512_add_epi32(power, _mm512_set1_epi32(127)), 23);
  __m512 p = each(0.00828929059F);
  p = _mm512_fmadd_ps(p, r, each(0.0418978222F));
  p = _mm512_fmadd_ps(p, r, each(0.166676521F));
  p = _mm512_fmadd_ps(p, r, each(0.499991506F));
  p = _mm512_fmadd_ps(p, r, each(0.999999702F));
  p = _mm512_fmadd_ps(p, r, each(1.0F));
  p = _mm512_mul_ps(p, _mm512_mask_mov_ps(_mm512_castsi512_ps(power), vanishes, _mm512_setzero_ps()));
  return _mm512_mul_ps(p, each(2.0F));
}

// d gelu(x) / dx = (1 + erf(v)) / 2 + v * exp(-v^2) / sqrt(pi), v = x / sqrt(2), with erf by Abramowitz and Stegun,
// 7.1.26.
inline __m512 derivative(__m512 x) {
  const __m512 one = each(1.0F), half = each(0.5F);
  const __m512 v = _mm512_mul_ps(x, each(0.707106769F));
  const __m512 e = exponential(negated(_mm512_mul_ps(v, v)));
  const __m512 density = _mm512_mul_ps(_mm512_mul_ps(v, each(0.564189553F)), e);
  const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(each(0.327591091F), _mm512_abs_ps(v), one));
  __m512 p = each(1.06140542F);
  p = _mm512_fmadd_ps(p, t, each(-1.45315206F));
  p = _mm512_fmadd_ps(p, t, each(1.42141378F));
  p = _mm512_fmadd_ps(p, t, each(-0.284496725F));
  p = _mm512_fmadd_ps(p, t, each(0.254829586F));
  __m512 erf = _mm512_fmadd_ps(_mm512_mul_ps(negated(e), t), p, one);
  erf = _mm512_xor_ps(erf, signOf(v));
  return _mm512_fmadd_ps(erf, half, _mm512_add_ps(density, half));
}

// The lanes of the last elements.
inline __mmask16 lanesOf(int64_t count) {
  return static_cast<__mmask16>(count >= kLanes ? 0xFFFFU : (1U << count) - 1U);
}

void forward(int64_t count, float* to, const float* x) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 lanes = lanesOf(count - i);
    _mm512_mask_storeu_ps(to + i, lanes, gelu(_mm512_maskz_loadu_ps(lanes, x + i)));
  }
}

void backward(int64_t count, float* to, const float* grad, const float* x) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const __mmask16 lanes = lanesOf(count - i);
    const __m512 factor = derivative(_mm512_maskz_loadu_ps(lanes, x + i));
    _mm512_mask_storeu_ps(to + i, lanes, _mm512_mul_ps(factor, _mm512_maskz_loadu_ps(lanes, grad + i)));
  }
}

}  // namespace

const ExactGelu kExactGeluAvx512 = {forward, backward};

}  // namespace abele::runtime::loops
#endif
