// CartPole: a pole on a cart, to be kept upright by pushing the cart left or right (Barto, Sutton
// and Anderson, "Neuronlike Adaptive Elements That Can Solve Difficult Learning Control Problems",
// 1983), with the constants of Gym's CartPole-v1.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <random>

class CartPole {
 public:
  // Position (m) and velocity of the cart, angle (rad) and angular velocity of the pole.
  using State = std::array<double, 4>;
  static constexpr int kLongest = 500;  // steps

  explicit CartPole(uint64_t seed) : random_(seed) { reset(); }

  const State& state() const { return state_; }
  // The pole has fallen, the cart has left its track, or it went well for kLongest steps.
  bool over() const {
    constexpr double kTwelveDegrees = 12 * 2 * M_PI / 360;
    return std::abs(state_[0]) > 2.4 || std::abs(state_[2]) > kTwelveDegrees || steps_ >= kLongest;
  }

  void reset() {
    for (double& value : state_) value = 0.1 * static_cast<double>(random_() >> 11) / 0x1p53 - 0.05;
    steps_ = 0;
  }
  // Pushes for 0.02 s: 0 left, 1 right. Every step is worth 1.
  void step(int action) {
    constexpr double kGravity = 9.8, kPole = 0.1, kTotal = 1.0 + kPole;  // m/s^2, kg: pole, both
    constexpr double kLength = 0.5, kTime = 0.02;                        // m: half the pole; s
    const double force = action == 1 ? 10 : -10;                         // N
    auto& [x, speed, angle, turn] = state_;
    const double cos = std::cos(angle), sin = std::sin(angle);
    const double push = (force + kPole * kLength * turn * turn * sin) / kTotal;
    const double turned =
        (kGravity * sin - cos * push) / (kLength * (4.0 / 3.0 - kPole * cos * cos / kTotal));
    const double sped = push - kPole * kLength * turned * cos / kTotal;
    x += kTime * speed;
    speed += kTime * sped;
    angle += kTime * turn;
    turn += kTime * turned;
    ++steps_;
  }

 private:
  std::mt19937_64 random_;
  State state_{};
  int steps_ = 0;
};
