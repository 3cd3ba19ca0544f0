#include "base/instructions.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace abele {
namespace {

TEST(Instructions, EveryRowIsFoundByItsName) {
  std::set<std::string> names;
  for (const OwnOpRow& row : allOwnOps()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(isOwn(row.name));
    EXPECT_TRUE(names.insert(row.name).second) << "twice";
    EXPECT_EQ(ownOp(row.name), row.op);
    EXPECT_STREQ(ownOpName(row.op), row.name);
    EXPECT_FALSE(row.operands.empty());
    // Optional operands come last.
    for (size_t i = 1; i < row.operands.size(); ++i)
      EXPECT_TRUE(row.operands[i].may_lack || !row.operands[i - 1].may_lack) << row.operands[i].name;
  }
  EXPECT_EQ(ownOp("aten::add.Tensor"), OwnOp::kNone);
  EXPECT_EQ(ownOp("abele::emitt"), OwnOp::kNone);
  EXPECT_TRUE(isOwn("abele::emitt"));
}

// Existing files hold these names.
TEST(Instructions, KeepsTheOperandsOfUpdates) {
  const auto text = [](OptimizerKind kind) {
    std::string all;
    for (const Operand& operand : ownOpRow(ownOpName(updateOf(kind)))->operands)
      all += std::string(operand.is_written ? "!" : "") + operand.name + (operand.may_lack ? "? " : " ");
    return all;
  };
  EXPECT_EQ(text(OptimizerKind::kSgd), "!param accumulator !momentum_buffer group factor? !step? ");
  EXPECT_EQ(text(OptimizerKind::kAdamW), "!param accumulator !exp_avg !exp_avg_sq !step group factor? ");
  EXPECT_EQ(text(OptimizerKind::kRmsprop),
            "!param accumulator !square_avg !grad_avg !velocity group tf_variant factor? ");
  EXPECT_EQ(text(OptimizerKind::kLamb), "!param accumulator !exp_avg !exp_avg_sq !step group bias_correction factor? ");
}

TEST(Instructions, KnowsTheParameterGroupOfEveryUpdateAndOfNothingElse) {
  std::set<OwnOp> updates;
  for (const OptimizerRow& optimizer : allOptimizers()) {
    const OwnOpRow* row = ownOpRow(optimizer.op);
    ASSERT_NE(row, nullptr) << optimizer.name;
    EXPECT_EQ(row->op, updateOf(optimizer.kind));
    updates.insert(row->op);
  }
  for (const OwnOpRow& row : allOwnOps()) {
    SCOPED_TRACE(row.name);
    const int at = row.groupOperand();
    EXPECT_EQ(at >= 0, updates.contains(row.op));
    if (at >= 0) {
      EXPECT_STREQ(row.operands[static_cast<size_t>(at)].name, "group");
    }
  }
}

// Files of programs hold these numbers, so a new optimizer gets the next number.
TEST(Optimizers, KeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(OptimizerKind::kNone), 0);
  EXPECT_EQ(static_cast<int>(OptimizerKind::kSgd), 1);
  EXPECT_EQ(static_cast<int>(OptimizerKind::kAdam), 2);
  EXPECT_EQ(static_cast<int>(OptimizerKind::kAdamW), 3);
  EXPECT_EQ(static_cast<int>(OptimizerKind::kRmsprop), 4);
  EXPECT_EQ(static_cast<int>(OptimizerKind::kLamb), 5);
}

TEST(Optimizers, AreFoundByTheirNameInLowerCase) {
  for (const OptimizerRow& row : allOptimizers()) {
    EXPECT_EQ(&optimizerRow(row.kind), &row);
    EXPECT_STREQ(optimizerRow(row.kind).name, row.name);
  }
  EXPECT_EQ(optimizerNamed("rmsprop"), OptimizerKind::kRmsprop);
  EXPECT_EQ(optimizerNamed("adagrad"), OptimizerKind::kNone);
  EXPECT_EQ(optimizerNames({"none"}).front(), "none");
}

}  // namespace
}  // namespace abele
