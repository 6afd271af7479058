#include "lockstep/kernels/dropout.h"
#include "lockstep/kernels/kernels_test.h"

namespace lockstep::inline v0::kernels {
namespace {

using testing::every;
using testing::expect_close;
using testing::from_bf16;
using testing::numbers;

struct SoftmaxCase {
  int64_t rows = 11, keys, pitch;
  std::vector<float> scores, dweights, bias;
  Softmax softmax;

  SoftmaxCase(int64_t the_keys, double dropout, bool has_bias, Type type)
      : keys(the_keys), pitch((the_keys + kPad - 1) / kPad * kPad) {
    scores = numbers(rows * pitch, 1, 10), dweights = numbers(rows * pitch, 2);
    bias.assign(keys, 0);
    if (has_bias) bias = numbers(keys, 3), bias[keys / 2] = -3.4e38F;
    softmax.keys = keys;
    softmax.pitch = pitch;
    softmax.type = type;
    softmax.scale = 0.25F;
    softmax.bias = has_bias ? bias.data() : nullptr;
    softmax.dropout = make_dropout(5, dropout);
    softmax.mask_row = 1000;
  }

  double mask(int64_t r, int64_t c) const {
    return is_kept(softmax.dropout, softmax.mask_row + r, c) ? softmax.dropout.scale : 0;
  }
  struct Expected {
    std::vector<double> weights, dscores;  // [rows, pitch], after dropout; before the scale
  };
  Expected expected() const {
    Expected e{std::vector<double>(rows * pitch), std::vector<double>(rows * pitch)};
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> p(keys);
      double largest = -1e300, sum = 0, mean = 0;
      for (int64_t c = 0; c < keys; ++c) {
        p[c] = static_cast<double>(scores[r * pitch + c]) * softmax.scale + bias[c];
        largest = std::max(largest, p[c]);
      }
      for (double& v : p) sum += v = std::exp(v - largest);
      for (double& v : p) v /= sum;
      for (int64_t c = 0; c < keys; ++c) mean += p[c] * mask(r, c) * dweights[r * pitch + c];
      for (int64_t c = 0; c < keys; ++c) {
        e.weights[r * pitch + c] = p[c] * mask(r, c);
        e.dscores[r * pitch + c] =
            p[c] * (mask(r, c) * dweights[r * pitch + c] - mean) * softmax.scale;
      }
    }
    return e;
  }
};

constexpr int64_t kCounts[] = {1, 15, 16, 17, 31, 40, 128, 200};

TEST(Softmax, InFloat32) {
  for (const int64_t keys : kCounts)
    for (const double p : {0.0, 0.2})
      for (const bool bias : {false, true}) {
        const SoftmaxCase test(keys, p, bias, Type::kFloat32);
        const auto expected = test.expected();
        for (const Kernels* k : every()) {
          const std::string what = std::string(k->name) + " " + std::to_string(keys);
          std::vector<float> scores = test.scores, weights(scores.size(), 9), most(test.rows),
                             inverse(test.rows);
          k->softmax(test.softmax, {scores.data(), weights.data(), most.data(), inverse.data()},
                     test.rows);
          expect_close(weights, expected.weights, 2e-6, what);

          const int64_t padded = 16;
          scores = test.scores;
          scores.resize(padded * test.pitch, 9);
          std::vector<float> d = test.dweights;
          d.resize(padded * test.pitch, 9);
          SoftmaxGradients g;
          g.scores = scores.data(), g.dweights = d.data(), g.rows = padded;
          g.most = most.data(), g.inverse = inverse.data();
          k->softmax_backward(test.softmax, g, test.rows);
          auto all = expected;
          all.weights.resize(scores.size()), all.dscores.resize(scores.size());
          expect_close(scores, all.weights, 2e-6, what);
          expect_close(d, all.dscores, 2e-6, what);
        }
      }
}

TEST(Softmax, InBfloat16WithPackedResults) {
  for (const int64_t keys : kCounts)
    for (const double p : {0.0, 0.2}) {
      const SoftmaxCase test(keys, p, false, Type::kBFloat16);
      const auto expected = test.expected();
      for (const Kernels* k : every()) {
        const std::string what = std::string(k->name) + " " + std::to_string(keys);
        std::vector<float> scores = test.scores, most(test.rows), inverse(test.rows);
        std::vector<uint16_t> weights(scores.size(), 9);
        k->softmax(test.softmax, {scores.data(), weights.data(), most.data(), inverse.data()},
                   test.rows);
        expect_close(from_bf16(weights), expected.weights, 4e-3, what);

        const int64_t padded = 16;
        scores = test.scores;
        std::vector<float> d = test.dweights;
        std::vector<uint16_t> dscores(scores.size(), 9), packed(padded * test.pitch, 9),
            weights_packed = packed;
        SoftmaxGradients g;
        g.scores = scores.data(), g.dweights = d.data(), g.rows = padded;
        g.most = most.data(), g.inverse = inverse.data();
        g.dscores = dscores.data(), g.dscores_packed = packed.data();
        g.weights_packed = weights_packed.data();
        k->softmax_backward(test.softmax, g, test.rows);
        expect_close(from_bf16(dscores), expected.dscores, 4e-3, what);
        const auto repacked = [&](std::vector<uint16_t> rows) {
          std::vector<uint16_t> result(padded * test.pitch);
          k->pack_rows({Type::kBFloat16, rows.data(), test.rows, test.pitch, test.pitch}, padded,
                       test.pitch, result.data());
          return result;
        };
        EXPECT_EQ(packed, repacked(dscores)) << what;
        EXPECT_EQ(weights_packed, repacked(weights)) << what;
      }
    }
}

// If every key is hidden, all count alike.
TEST(Softmax, AllHidden) {
  for (const Kernels* k : every()) {
    SoftmaxCase test(20, 0, true, Type::kFloat32);
    test.bias.assign(20, -3.4028234e38F);
    std::vector<float> weights(test.scores.size()), most(test.rows), inverse(test.rows);
    k->softmax(test.softmax, {test.scores.data(), weights.data(), most.data(), inverse.data()},
               test.rows);
    EXPECT_NEAR(weights[3], 0.05F, 1e-6) << k->name;
  }
}

}  // namespace
}  // namespace lockstep::inline v0::kernels
