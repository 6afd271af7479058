#include "lockstep/kernels/kernels_test.h"

#include <bit>

#include "lockstep/core/instruction_set.h"
#include "lockstep/kernels/dropout.h"
#include "lockstep/kernels/parallel.h"

namespace lockstep::inline v0::kernels {
namespace {

using testing::every;
using testing::expect_close;
using testing::from_bf16;
using testing::numbers;
using testing::to_bf16;

using Doubles = std::vector<double>;

// A norm's inputs and outputs, and both passes in plain double precision.
struct NormCase {
  int64_t rows, width;
  bool rounded;
  std::vector<float> x, bias, residual, gamma, beta, dy, dy_second;
  std::vector<uint16_t> x_short, dy_short;
  Norm norm;

  NormCase(int64_t the_rows, int64_t the_width, bool is_short, double before, double after)
      : rows(the_rows), width(the_width), rounded(is_short) {
    x = numbers(rows * width, 1), residual = numbers(rows * width, 2);
    dy = numbers(rows * width, 3), dy_second = numbers(rows * width, 4);
    bias = numbers(width, 5), gamma = numbers(width, 6), beta = numbers(width, 7);
    if (rounded) {
      x_short = to_bf16(x), dy_short = to_bf16(dy_second);
      x = from_bf16(x_short), dy_second = from_bf16(dy_short);
    }
    norm.width = width;
    norm.type = rounded ? Type::kBFloat16 : Type::kFloat32;
    norm.x = rounded ? static_cast<const void*>(x_short.data()) : x.data();
    norm.bias = bias.data();
    norm.residual = residual.data();
    norm.before = make_dropout(11, before);
    norm.gamma = gamma.data();
    norm.beta = beta.data();
    norm.epsilon = 1e-5F;
    norm.after = make_dropout(12, after);
  }

  static double mask(const Dropout& dropout, int64_t r, int64_t c) {
    return is_kept(dropout, r, c) ? dropout.scale : 0;
  }
  size_t at(int64_t r, int64_t c) const { return static_cast<size_t>(r * width + c); }

  struct Row {
    Doubles normed;
    double rstd;
  };
  Row row(int64_t r) const {
    Doubles z;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < width; ++c) {
      z.push_back(mask(norm.before, r, c) * (x[at(r, c)] + bias[c]) + residual[at(r, c)]);
      mean += z.back() / static_cast<double>(width);
    }
    for (const double v : z) variance += (v - mean) * (v - mean) / static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + norm.epsilon);
    for (double& v : z) v = (v - mean) * rstd;
    return {z, rstd};
  }

  Doubles expected() const {
    Doubles y;
    for (int64_t r = 0; r < rows; ++r) {
      const Row own = row(r);
      for (int64_t c = 0; c < width; ++c)
        y.push_back(mask(norm.after, r, c) * (own.normed[c] * gamma[c] + beta[c]));
    }
    return y;
  }

  struct Gradients {
    Doubles dz, dx, dgamma, dbeta, dbias;
  };
  Gradients gradients() const {
    Gradients g{{}, {}, Doubles(width), Doubles(width), Doubles(width)};
    for (int64_t r = 0; r < rows; ++r) {
      const Row own = row(r);
      Doubles k;
      double mean = 0, mean_normed = 0;
      for (int64_t c = 0; c < width; ++c) {
        const double d = mask(norm.after, r, c) * (dy[at(r, c)] + dy_second[at(r, c)]);
        g.dgamma[c] += d * own.normed[c];
        g.dbeta[c] += d;
        k.push_back(d * gamma[c]);
        mean += k.back() / static_cast<double>(width);
        mean_normed += k.back() * own.normed[c] / static_cast<double>(width);
      }
      for (int64_t c = 0; c < width; ++c) {
        g.dz.push_back(own.rstd * (k[c] - mean - own.normed[c] * mean_normed));
        g.dx.push_back(mask(norm.before, r, c) * g.dz.back());
        g.dbias[c] += g.dx.back();
      }
    }
    return g;
  }

  std::vector<float> forward(const Kernels& k, std::vector<float>& mean, std::vector<float>& rstd,
                             std::vector<uint16_t>* y_short = nullptr) const {
    std::vector<float> y(x.size());
    mean.resize(rows), rstd.resize(rows);
    NormOutputs out{y.data(), nullptr, mean.data(), rstd.data()};
    if (y_short != nullptr) {
      y_short->resize(x.size());
      out.rounded = y_short->data();
    }
    k.norm(norm, out, 0, rows / 2);  // in two pieces
    k.norm(norm, out, rows / 2, rows);
    return y;
  }
};

TEST(Norm, ForwardIsThatOfDoublePrecision) {
  for (const bool rounded : {false, true})
    for (const int64_t width : {1, 7, 16, 33, 64, 100, 768})
      for (const auto& [before, after] :
           std::vector<std::pair<double, double>>{{0, 0}, {0.2, 0}, {0, 0.3}, {0.2, 0.3}}) {
        const NormCase test(5, width, rounded, before, after);
        for (const Kernels* k : every()) {
          std::vector<float> mean, rstd;
          std::vector<uint16_t> narrow;
          const auto y = test.forward(*k, mean, rstd, &narrow);
          expect_close(y, test.expected(), width == 1 ? 1e-3 : 1e-5, k->name);
          EXPECT_EQ(narrow, to_bf16(y)) << k->name;
        }
      }
}

TEST(Norm, BackwardIsThatOfDoublePrecision) {
  for (const bool rounded : {false, true})
    for (const int64_t width : {7, 33, 96, 768})
      for (const double p : {0.0, 0.25}) {
        const int64_t rows = 37;
        const NormCase test(rows, width, rounded, p, p / 2);
        const auto expected = test.gradients();
        for (const Kernels* k : every()) {
          std::vector<float> mean, rstd, dz(test.x.size()), dx(test.x.size()), sums(4 * width);
          std::vector<uint16_t> dx_short(test.x.size()), columns(width * (rows + 3));
          test.forward(*k, mean, rstd);
          NormGradients g{mean.data(), rstd.data(), test.dy.data(), test.dy_second.data(),
                          dz.data(),   dx.data(),   nullptr,        0,
                          sums.data()};
          if (rounded) {
            g.dy_typed = test.dy_short.data(), g.dx = dx_short.data();
            g.dx_columns = columns.data(), g.columns_pitch = rows + 3;
          }
          k->norm_backward(test.norm, g, 0, 20);
          // Pieces of the transpose begin where the piece does.
          if (rounded) g.dx_columns = columns.data();
          k->norm_backward(test.norm, g, 20, rows);
          if (rounded) dx = from_bf16(dx_short);
          expect_close(dz, expected.dz, 2e-5, k->name);
          expect_close(dx, expected.dx, rounded ? 5e-3 : 2e-5, k->name);
          const auto part = [&](int64_t i) {
            return std::vector<float>(sums.begin() + i * width, sums.begin() + (i + 1) * width);
          };
          expect_close(part(0), expected.dgamma, 1e-4, k->name);
          expect_close(part(1), expected.dbeta, 1e-4, k->name);
          expect_close(part(2), expected.dbias, 1e-4, k->name);
          for (int64_t r = 0; rounded && r < rows; ++r)
            for (int64_t c = 0; c < width; ++c)
              ASSERT_EQ(columns[c * (rows + 3) + r], dx_short[test.at(r, c)]) << k->name;
        }
      }
}

TEST(Norm, TakesWhatThereIs) {
  NormCase test(4, 40, false, 0, 0);
  test.norm.x = nullptr;
  test.norm.bias = nullptr;
  test.x.assign(test.x.size(), 0);
  test.bias.assign(test.bias.size(), 0);
  for (const Kernels* k : every()) {
    std::vector<float> mean, rstd, dz(test.x.size()), sums(4 * 40);
    expect_close(test.forward(*k, mean, rstd), test.expected(), 1e-5, k->name);
    NormCase one = test;
    one.dy_second.assign(one.dy_second.size(), 0);
    k->norm_backward(test.norm,
                     {mean.data(), rstd.data(), test.dy.data(), nullptr, dz.data(), nullptr,
                      nullptr, 0, sums.data()},
                     0, 4);
    expect_close(dz, one.gradients().dz, 2e-5, k->name);
  }
}

double activated(Activation kind, double x) {
  if (kind == Activation::kRelu) return std::max(x, 0.0);
  if (kind == Activation::kGelu) return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST(Activate, ForwardAndBackward) {
  const int64_t width = 83, rows = 35;
  const std::vector<float> bias = numbers(width, 1);
  std::vector<float> x = numbers(rows * width, 2, 3), dy = numbers(rows * width, 3);
  x[0] = 40, x[1] = -40, x[3] = 1e30F, x[4] = 8, x[5] = -8;
  for (const Activation kind : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu}) {
    Doubles y, dx, dbias(width);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = static_cast<double>(x[i] + bias[i % width]), h = 1e-5;
      y.push_back(activated(kind, v));
      const double slope =
          std::abs(v) > 1e6 ? 1 : (activated(kind, v + h) - activated(kind, v - h)) / (2 * h);
      dx.push_back(dy[i] * slope);
      dbias[i % width] += dx.back();
    }
    for (const Kernels* k : every()) {
      const Activate activate{width, Type::kFloat32, kind, x.data(), bias.data()};
      std::vector<float> out(x.size()), same = out, slope = out, gradient = dy, sums(width);
      k->activate(activate, {out.data(), nullptr}, 0, rows);
      expect_close(out, y, 1e-6, k->name);
      k->activate(activate, {same.data(), slope.data()}, 0, 20);
      k->activate(activate, {same.data(), slope.data()}, 20, rows);
      EXPECT_EQ(same, out) << k->name;
      ActivateGradients g;
      g.width = width, g.slope = slope.data(), g.dy = gradient.data(), g.bias_sum = sums.data();
      k->activate_backward(g, 0, rows);
      expect_close(gradient, dx, 2e-6, k->name);
      expect_close(sums, dbias, 1e-4, k->name);
    }
  }
}

TEST(Activate, InBfloat16WithItsTranspose) {
  const int64_t width = 70, rows = 41, pitch = 48;
  const auto x = to_bf16(numbers(rows * width, 2)), dy = to_bf16(numbers(rows * width, 3));
  const std::vector<float> bias = numbers(width, 1), wide = from_bf16(x), wide_dy = from_bf16(dy);
  for (const Kernels* k : every()) {
    std::vector<float> expected(x.size()), slope(x.size());
    k->activate({width, Type::kFloat32, Activation::kGelu, wide.data(), bias.data()},
                {expected.data(), slope.data()}, 0, rows);

    std::vector<uint16_t> y(x.size()), place = x, dx = dy, columns(width * pitch);
    k->activate({width, Type::kBFloat16, Activation::kGelu, place.data(), bias.data()},
                {y.data(), place.data()}, 0, rows);
    EXPECT_EQ(y, to_bf16(expected)) << k->name;
    EXPECT_EQ(place, to_bf16(slope)) << k->name;
    std::vector<float> sums(width), expected_sums(width), products;
    for (size_t i = 0; i < place.size(); ++i) {
      products.push_back(wide_dy[i] * from_bf16(place[i]));
      expected_sums[i % width] += products.back();
    }
    k->activate_backward(
        {width, Type::kBFloat16, place.data(), dx.data(), columns.data(), pitch, sums.data()}, 0,
        rows);
    EXPECT_EQ(dx, to_bf16(products)) << k->name;
    EXPECT_EQ(sums, expected_sums) << k->name;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < width; ++c)
        ASSERT_EQ(columns[c * pitch + r], dx[r * width + c]) << k->name;
  }
}

// Numbers that no library's functions have rounded.
void fill(std::vector<float>& to, uint32_t seed) {
  for (float& one : to) {
    seed = seed * 1664525 + 1013904223;
    one = static_cast<float>(static_cast<int32_t>(seed >> 18) - 8192) / 2048;
  }
}

// Of the bits that a norm, activations and a filling give.
uint64_t fingerprint_of(const Kernels& k) {
  NormCase test(6, 200, false, 0.1, 0.1);
  uint32_t seed = 1;
  for (std::vector<float>* values : {&test.x, &test.bias, &test.residual, &test.gamma, &test.beta})
    fill(*values, seed++);
  std::vector<float> mean, rstd;
  std::vector<float> all = test.forward(k, mean, rstd);
  all.insert(all.end(), mean.begin(), mean.end());
  all.insert(all.end(), rstd.begin(), rstd.end());
  std::vector<float> x(1000), bias(100);
  fill(x, 9);
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh}) {
    std::vector<float> y(1000);
    k.activate({100, Type::kFloat32, activation, x.data(), bias.data()}, {y.data(), nullptr}, 0,
               10);
    all.insert(all.end(), y.begin(), y.end());
  }
  std::vector<float> filled(1000);
  k.fill_normal(7, 0.02F, filled.data(), 0, 1000);
  all.insert(all.end(), filled.begin(), filled.end());
  uint64_t hash = 0xcbf29ce484222325;
  for (const float one : all) hash = (hash ^ std::bit_cast<uint32_t>(one)) * 0x100000001b3;
  return hash;
}
constexpr uint64_t kPlainFingerprint = 4389020723607219648U;
constexpr uint64_t kWideFingerprint = 14650697702882782748U;

// The processors with AVX2 give the same bits, so that ranks on different ones agree.
TEST(Kernels, WideInstructionSetsAgreeBitForBit) {
  const auto all = every();
  if (all.size() < 3) GTEST_SKIP() << "this processor has no AVX-512 to compare with AVX2";
  const NormCase test(6, 200, true, 0.1, 0.1);
  std::vector<float> mean[2], rstd[2];
  EXPECT_EQ(test.forward(*all[1], mean[0], rstd[0]), test.forward(*all[2], mean[1], rstd[1]));
  const std::vector<float> x = numbers(1000, 8, 4), bias(100);
  const Activate activate{100, Type::kFloat32, Activation::kGelu, x.data(), bias.data()};
  std::vector<float> y[2] = {std::vector<float>(1000), std::vector<float>(1000)};
  for (size_t i = 0; i < 2; ++i) all[i + 1]->activate(activate, {y[i].data(), nullptr}, 0, 10);
  EXPECT_EQ(y[0], y[1]);
}

// avx2, avx512 and neon: ranks of different architectures agree as well. The number is that of
// either, and of the plain code, whose products and sums are rounded one by one everywhere.
TEST(Kernels, EveryArchitectureGivesTheSameBits) {
  for (const Kernels* k : every()) {
    const bool plain = k == every().front();
    EXPECT_EQ(fingerprint_of(*k), plain ? kPlainFingerprint : kWideFingerprint) << k->name;
  }
}

TEST(Kernels, TheBestThatTheEnvironmentAllows) {
  const auto all = every();
  const auto limit = static_cast<size_t>(instruction_set_limit(process_env()));
  EXPECT_STREQ(kernels().name, all[std::min(all.size() - 1, limit)]->name);
}

TEST(InParallel, DoesEveryPieceOnceAndRethrows) {
  for (const int threads : {1, 4}) {
    std::vector<int> done(103);
    in_parallel(103, 10, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) ++done[i];
    });
    EXPECT_EQ(done, std::vector<int>(103, 1));
    EXPECT_THROW(in_parallel(50, 1, threads,
                             [](int64_t begin, int64_t) {
                               if (begin == 30) throw std::runtime_error("no");
                             }),
                 std::runtime_error);
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels
