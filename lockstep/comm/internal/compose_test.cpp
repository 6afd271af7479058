#include "lockstep/comm/internal/compose.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/comm/engines/local/local_backend.h"
#include "lockstep/core/errors.h"
#include "lockstep/testing/engine_threads.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::compose_test {
namespace {

// An engine with as few operations as gloo, and fewer: no reduce_scatter, no 16-bit floats, no
// bool, no int16.
Capabilities poor() {
  Capabilities c;
  c.backend = "poor";
  c.ops.fill(true);
  c.ops[static_cast<int>(Op::kReduceScatter)] = false;
  c.v_ops[static_cast<int>(Op::kAllToAll)] = true;
  c.move_dtypes = bit(at::kFloat) | bit(at::kLong) | bit(at::kByte);
  c.reduce_dtypes = bit(at::kFloat) | bit(at::kDouble) | bit(at::kInt) | bit(at::kLong) |
                    bit(at::kChar) | bit(at::kByte);
  const uint32_t arithmetic =
      bit(ReduceOp::kSum) | bit(ReduceOp::kProduct) | bit(ReduceOp::kMin) | bit(ReduceOp::kMax);
  c.float_reduce_ops = arithmetic;
  c.integer_reduce_ops =
      arithmetic | bit(ReduceOp::kBitAnd) | bit(ReduceOp::kBitOr) | bit(ReduceOp::kBitXor);
  return c;
}

// Like NCCL: moves everything, but has no bitwise reductions.
Capabilities without_bits() {
  Capabilities c = poor();
  c.move_dtypes = all_dtypes();
  c.integer_reduce_ops &=
      ~(bit(ReduceOp::kBitAnd) | bit(ReduceOp::kBitOr) | bit(ReduceOp::kBitXor));
  return c;
}

TEST(Compose, SaysNativeComposedOrUnsupported) {
  const Capabilities c = poor();
  const auto support = [&](Op op, at::ScalarType dtype, ReduceOp reduce = ReduceOp::kSum,
                           bool v = false) { return plan_call(c, op, dtype, reduce, v).support; };
  EXPECT_EQ(support(Op::kAllReduce, at::kFloat), Support::kNative);
  EXPECT_EQ(support(Op::kAllReduce, at::kFloat, ReduceOp::kAvg), Support::kComposed);
  EXPECT_EQ(support(Op::kAllReduce, at::kHalf), Support::kComposed);
  EXPECT_EQ(support(Op::kAllReduce, at::kShort), Support::kComposed);
  EXPECT_EQ(support(Op::kAllReduce, at::kBool, ReduceOp::kBitXor), Support::kComposed);
  EXPECT_EQ(support(Op::kBroadcast, at::kDouble), Support::kComposed) << "moved as bytes";
  EXPECT_EQ(support(Op::kGather, at::kFloat, ReduceOp::kSum, true), Support::kComposed) << "padded";
  EXPECT_EQ(support(Op::kReduceScatter, at::kFloat), Support::kComposed)
      << "all_reduce and keep a part";
  EXPECT_EQ(support(Op::kAllToAll, at::kFloat, ReduceOp::kSum, true), Support::kNative);

  Capabilities mute = c;
  mute.ops[static_cast<int>(Op::kAllToAll)] = mute.v_ops[static_cast<int>(Op::kAllToAll)] = false;
  mute.integer_reduce_ops &= ~bit(ReduceOp::kBitXor);
  const Plan none = plan_call(mute, Op::kAllToAll, at::kFloat, ReduceOp::kSum, false);
  EXPECT_EQ(none.support, Support::kUnsupported);
  EXPECT_EQ(none.reason, "backend poor has no all_to_all");
  EXPECT_EQ(plan_call(mute, Op::kAllReduce, at::kInt, ReduceOp::kBitXor, false).support,
            Support::kUnsupported)
      << "int32 is moved as bytes";
  for (const at::ScalarType dtype : {at::kInt, at::kByte, at::kBool}) {
    const Plan plan =
        plan_call(without_bits(), Op::kAllReduce, dtype, ReduceOp::kBitXor, /*v_form=*/false);
    EXPECT_EQ(plan.support, Support::kComposed) << "gathered, and folded here";
    EXPECT_TRUE(plan.fold);
  }
}

// Refuses operations that its capabilities do not name; passes the rest to a local backend.
class PoorBackend final : public Backend {
 public:
  PoorBackend(std::unique_ptr<Backend> engine, Capabilities capabilities)
      : capabilities_(std::move(capabilities)), engine_(std::move(engine)) {}
  const Capabilities& capabilities() const override { return capabilities_; }
  std::unique_ptr<Request> start(const Call& call) override {
    EXPECT_TRUE(capabilities_.ops[static_cast<int>(call.op)]) << describe(call);
    if (is_reduction(call.op)) {
      EXPECT_NE(capabilities_.reduce_dtypes & bit(call.dtype), 0u) << describe(call);
      EXPECT_NE(call.reduce, ReduceOp::kAvg) << describe(call);
      EXPECT_NE(
          (capabilities_.integer_reduce_ops | capabilities_.float_reduce_ops) & bit(call.reduce),
          0u)
          << describe(call);
    } else if (call.op != Op::kBarrier) {
      EXPECT_NE(capabilities_.move_dtypes & bit(call.dtype), 0u) << describe(call);
    }
    if (call.op == Op::kGather || call.op == Op::kAllGather || call.op == Op::kScatter) {
      for (const int64_t count : call.counts) EXPECT_EQ(count, call.counts[0]) << describe(call);
    }
    return engine_->start(call);
  }
  void progress() override { engine_->progress(); }
  void abort(const Breakage& why) noexcept override { engine_->abort(why); }

 private:
  Capabilities capabilities_;
  std::unique_ptr<Backend> engine_;
};

TEST(Compose, APoorEngineGivesTheSameResults) {
  constexpr int kSize = 3;
  for (const Capabilities& capabilities : {poor(), without_bits()}) {
    auto backends = make_local_backends(kSize);
    const auto make = [&](int rank) {
      return std::pair(std::make_unique<PoorBackend>(std::move(backends[rank]), capabilities),
                       Topology{rank, kSize, rank, kSize, 0});
    };
    testing::run_engines(kSize, make, [](Communicator& comm, PoorBackend&) {
      const auto report = testing::run_operation_suite(comm, {.long_bytes = 5003});
      EXPECT_GT(report.checked, 1000);
      for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
    });
  }
}

}  // namespace
}  // namespace lockstep::inline v0::compose_test
