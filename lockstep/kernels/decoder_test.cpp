// RMS norm, SwiGLU and rotary positions against plain double precision, on every instruction set.
#include "lockstep/kernels/dropout.h"
#include "lockstep/kernels/kernels_test.h"

namespace lockstep::inline v0::kernels {
namespace {

using testing::every;
using testing::expect_close;
using testing::from_bf16;
using testing::numbers;
using testing::to_bf16;

using Doubles = std::vector<double>;

constexpr int64_t kWidths[] = {1, 15, 16, 33, 96, 200};

TEST(RmsNorm, BothPassesAreThoseOfItsFormula) {
  constexpr int64_t kRows = 3;
  for (const Kernels* k : every()) {
    for (const int64_t width : kWidths) {
      const auto count = static_cast<size_t>(kRows * width);
      const auto x = numbers(kRows * width, 1), residual = numbers(kRows * width, 2),
                 gamma = numbers(width, 3), dy = numbers(kRows * width, 4),
                 too = numbers(kRows * width, 5);
      RmsNorm norm;
      norm.width = width;
      norm.x = x.data();
      norm.residual = residual.data();
      norm.gamma = gamma.data();
      norm.epsilon = 1e-5F;
      std::vector<float> z(count), y(count), rrms(kRows), dz(count), sums(width);
      k->rms_norm(norm, {z.data(), y.data(), rrms.data()}, 0, kRows);
      RmsNormGradients g;
      g.z = z.data();
      g.rrms = rrms.data();
      g.dy = dy.data();
      g.dz_too = too.data();
      g.dz = dz.data();
      g.sums = sums.data();
      k->rms_norm_backward(norm, g, 0, kRows);
      Doubles z_true(count), y_true(count), dz_true(count), sums_true(width);
      for (int64_t r = 0; r < kRows; ++r) {
        double square = 0, product = 0;
        for (int64_t c = 0; c < width; ++c) {
          const auto i = static_cast<size_t>(r * width + c);
          z_true[i] = static_cast<double>(x[i]) + residual[i];
          square += z_true[i] * z_true[i];
        }
        const double scale = 1 / std::sqrt(square / static_cast<double>(width) + norm.epsilon);
        for (int64_t c = 0; c < width; ++c) {
          const auto i = static_cast<size_t>(r * width + c);
          y_true[i] = z_true[i] * scale * gamma[c];
          sums_true[c] += dy[i] * z_true[i] * scale;
          product += dy[i] * gamma[c] * z_true[i] * scale / static_cast<double>(width);
        }
        for (int64_t c = 0; c < width; ++c) {
          const auto i = static_cast<size_t>(r * width + c);
          dz_true[i] = scale * (dy[i] * gamma[c] - z_true[i] * scale * product) + too[i];
        }
      }
      const std::string what = std::string(k->name) + ", width " + std::to_string(width);
      expect_close(z, z_true, 1e-6, what + ": z");
      expect_close(y, y_true, 3e-6, what + ": y");
      expect_close(dz, dz_true, 1e-5, what + ": dz");
      expect_close(sums, sums_true, 1e-5, what + ": gamma's gradient");
    }
  }
}

TEST(RmsNorm, RoundsOnce) {
  const auto x = numbers(96, 1), gamma = numbers(96, 3);
  const auto narrow = to_bf16(x);
  const auto wide = from_bf16(narrow);
  for (const Kernels* k : every()) {
    RmsNorm norm;
    norm.width = 96;
    norm.gamma = gamma.data();
    norm.x = wide.data();
    std::vector<float> exact(96), rrms(1);
    k->rms_norm(norm, {nullptr, exact.data(), rrms.data()}, 0, 1);
    norm.type = Type::kBFloat16;
    norm.x = narrow.data();
    std::vector<uint16_t> rounded(96);
    k->rms_norm(norm, {nullptr, rounded.data(), rrms.data()}, 0, 1);
    EXPECT_EQ(rounded, to_bf16(exact)) << k->name;
  }
}

// A part of a matrix drops what the whole does there.
TEST(Kept, IsWhatDropoutSays) {
  const Dropout dropout = make_dropout(5, 0.3);
  for (const Kernels* k : every()) {
    for (const Area& area : {Area{0, 0, 4, 70}, Area{3, 32, 2, 5}, Area{1, 64, 3, 33}}) {
      std::vector<float> mask(static_cast<size_t>(area.rows * area.columns));
      k->kept(dropout, area, mask.data());
      for (int64_t r = 0; r < area.rows; ++r)
        for (int64_t c = 0; c < area.columns; ++c)
          EXPECT_EQ(mask[r * area.columns + c],
                    is_kept(dropout, area.row + r, area.column + c) ? dropout.scale : 0)
              << k->name << ", row " << r << ", column " << c;
    }
  }
}

TEST(SwiGlu, BothPassesAreThoseOfItsFormula) {
  for (const Kernels* k : every()) {
    for (const int64_t count : {1, 16, 50, 128}) {
      const auto gate = numbers(count, 1, 30), up = numbers(count, 2), dy = numbers(count, 3);
      std::vector<float> y(gate.size()), dgate(gate.size()), dup(gate.size());
      const SwiGlu s{Type::kFloat32, gate.data(), up.data()};
      k->swiglu(s, y.data(), 0, count);
      k->swiglu_backward(s, {dy.data(), dgate.data(), dup.data()}, 0, count);
      Doubles y_true, dgate_true, dup_true;
      for (size_t i = 0; i < gate.size(); ++i) {
        const double g = gate[i], open = 1 / (1 + std::exp(-g));
        y_true.push_back(g * open * up[i]);
        dgate_true.push_back(dy[i] * static_cast<double>(up[i]) * open * (1 + g * (1 - open)));
        dup_true.push_back(dy[i] * g * open);
      }
      expect_close(y, y_true, 1e-6, k->name);
      expect_close(dgate, dgate_true, 2e-6, k->name);
      expect_close(dup, dup_true, 1e-6, k->name);
    }
    const float far[] = {-1000, 1000, 0};
    const float ones[] = {1, 1, 1};
    float y[3];
    k->swiglu({Type::kFloat32, far, ones}, y, 0, 3);
    EXPECT_NEAR(y[0], 0, 1e-30) << k->name;
    EXPECT_EQ(y[1], 1000) << k->name;
    EXPECT_EQ(y[2], 0) << k->name;
  }
}

TEST(Rotary, TurnsPairsAndLaysHeadsOut) {
  constexpr int64_t kHeads = 3, kLength = 4;
  for (const Kernels* k : every()) {
    for (const int64_t width : {2, 16, 20, 64}) {
      const int64_t half = width / 2;
      const auto angles = numbers(9 * half, 1);
      std::vector<float> cosines, sines;
      for (const float a : angles) {
        cosines.push_back(std::cos(a));
        sines.push_back(std::sin(a));
      }
      const int64_t positions[kLength] = {0, 7, 8, 2};
      const int64_t pitch = kHeads * width + 5;
      const auto from = numbers(kLength * pitch, 2);
      Rotary r;
      r.heads = kHeads;
      r.width = width;
      r.pitch = pitch;
      r.cosines = cosines.data();
      r.sines = sines.data();
      r.positions = positions;
      std::vector<float> to(static_cast<size_t>(kHeads * kLength * width)), back(from);
      k->rotate(r, from.data(), to.data(), kLength, 0, 2);
      k->rotate(r, from.data(), to.data(), kLength, 2, kLength);
      Doubles expected(to.size());
      for (int64_t row = 0; row < kLength; ++row) {
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t c = 0; c < half; ++c) {
            const double a = from[row * pitch + h * width + c];
            const double b = from[row * pitch + h * width + half + c];
            const double cosine = cosines[positions[row] * half + c];
            const double sine = sines[positions[row] * half + c];
            expected[(h * kLength + row) * width + c] = a * cosine - b * sine;
            expected[(h * kLength + row) * width + half + c] = b * cosine + a * sine;
          }
        }
      }
      expect_close(to, expected, 1e-6, k->name);
      // A rotation's gradient is the rotation back.
      k->rotate_back(r, to.data(), back.data(), kLength, 0, kLength);
      expect_close(back, from, 1e-6, k->name);
    }
  }
}

TEST(Rotary, WithoutAnglesOnlyLaysOut) {
  const auto from = numbers(2 * 8, 1);
  for (const Kernels* k : every()) {
    Rotary r;
    r.heads = 2;
    r.width = 4;
    r.pitch = 8;
    std::vector<float> to(from.size());
    k->rotate(r, from.data(), to.data(), 2, 0, 2);
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t row = 0; row < 2; ++row)
        for (int64_t c = 0; c < 4; ++c)
          EXPECT_EQ(to[(h * 2 + row) * 4 + c], from[row * 8 + h * 4 + c]);
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels
