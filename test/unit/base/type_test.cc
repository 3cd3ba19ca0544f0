#include "base/type.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace abele {
namespace {

TEST(Type, TextLeavesOutContiguousStridesOnly) {
  EXPECT_EQ(contiguousType(DType::kFloat32, {4, 8}).str(), "f32[4,8]");
  EXPECT_EQ((Type{DType::kFloat32, {4, 8}, {1, 4}}).str(), "f32[4,8]{1,4}");
  EXPECT_EQ(contiguousType(DType::kBFloat16, {}).str(), "bf16[]");
  EXPECT_EQ(Type().str(), "none");
  // ATen calls it contiguous, but its strides are not those that would be read back.
  Type odd{DType::kInt64, {1, 8}, {99, 1}};
  EXPECT_TRUE(odd.isContiguous());
  EXPECT_EQ(odd.str(), "i64[1,8]{99,1}");
}

TEST(Type, ExtentIsOnePastTheLastElementTouched) {
  EXPECT_EQ(contiguousType(DType::kFloat32, {4, 8}).extent(), 32);
  EXPECT_EQ((Type{DType::kFloat32, {4, 2}, {8, 3}}).extent(), 3 * 8 + 3 + 1);
  EXPECT_EQ((Type{DType::kFloat32, {5, 3}, {0, 0}}).extent(), 1);
  EXPECT_EQ(contiguousType(DType::kFloat32, {4, 0}).extent(), 0);
  EXPECT_EQ(contiguousType(DType::kFloat64, {}).extentBytes(), 8);
  EXPECT_EQ(Type().extentBytes(), 0);
}

TEST(Type, ContiguousAsInAten) {
  EXPECT_TRUE((Type{DType::kFloat32, {0, 3}, {7, 7}}).isContiguous());
  EXPECT_FALSE((Type{DType::kFloat32, {2, 3}, {1, 2}}).isContiguous());
  EXPECT_EQ(contiguousType(DType::kFloat32, {2, 0, 3}).strides, (std::vector<int64_t>{3, 3, 1}));
}

TEST(DType, NamesComeBack) {
  for (int number = -1; number < 64; ++number) {
    DType dtype = static_cast<DType>(number);
    std::string_view name;
    try {
      name = dtypeName(dtype);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ErrorCode::E0201);
      continue;
    }
    bool known = false;
    EXPECT_EQ(parseDType(name, &known), dtype);
    EXPECT_TRUE(known);
  }
  bool known = true;
  EXPECT_EQ(parseDType("f31", &known), DType::kUndefined);
  EXPECT_FALSE(known);
  EXPECT_THROW(elementBytes(static_cast<DType>(23)), UserError);
}

}  // namespace
}  // namespace abele
