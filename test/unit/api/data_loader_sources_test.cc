// Batches made ahead, streams of chunks, and shares of several processes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "../../support/code_of.h"
#include "abele/abele.h"

namespace data_loader_sources_test {

using Batch = std::vector<at::Tensor>;
using abele::DataLoader;
using abele::DataLoaderMode;
using abele::test::codeOf;

abele::Options calls(int64_t iterations) { return abele::Options().deviceIterations(iterations); }

std::vector<std::vector<int64_t>> pass(DataLoader& loader) {
  std::vector<std::vector<int64_t>> rows;
  for (const Batch& batch : loader) {
    const at::Tensor first = batch[0].contiguous().to(torch::kLong);
    rows.emplace_back(first.const_data_ptr<int64_t>(), first.const_data_ptr<int64_t>() + first.numel());
  }
  return rows;
}

std::vector<int64_t> flat(const std::vector<std::vector<int64_t>>& rows) {
  std::vector<int64_t> all;
  for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
  return all;
}

TEST(DataLoaderSources, BatchesMadeAheadAreTheSame) {
  for (bool shuffle : {false, true}) {
    for (int64_t buffer : {1, 3, 50}) {
      DataLoader here(calls(2), {torch::arange(23)}, {.batch_size = 2, .shuffle = shuffle, .seed = 5});
      DataLoader ahead(
          calls(2), {torch::arange(23)},
          {.batch_size = 2, .shuffle = shuffle, .seed = 5, .mode = DataLoaderMode::kAsync, .buffer_size = buffer});
      EXPECT_EQ(ahead.size(), 5);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(pass(ahead), pass(here));
      Batch batch;
      ahead.reset();
      here.reset();
      ASSERT_TRUE(ahead.next(batch));  // an abandoned pass
      EXPECT_EQ(flat(pass(ahead)).size(), 20u);
      DataLoader moved = std::move(ahead);
      EXPECT_EQ(pass(moved).size(), 5u);
    }
  }
}

TEST(DataLoaderSources, WhatASourceThrowsComesAfterItsBatches) {
  for (DataLoaderMode mode : {DataLoaderMode::kSync, DataLoaderMode::kAsync}) {
    auto sample = [](int64_t i) {
      if (i == 5) throw std::runtime_error("sample 5 is rotten");
      return Batch{torch::tensor(i)};
    };
    DataLoader loader(calls(1), sample, 9, {.batch_size = 2, .mode = mode});
    Batch batch;
    EXPECT_TRUE(loader.next(batch));
    EXPECT_TRUE(loader.next(batch));
    EXPECT_THROW(loader.next(batch), std::runtime_error);
    loader.reset();
    EXPECT_TRUE(loader.next(batch));
    EXPECT_TRUE(torch::equal(batch[0], torch::tensor({0, 1})));
  }
}

/// A stream of chunks of these sizes, with rows numbered from 0.
std::function<abele::NextChunk()> stream(std::vector<int64_t> sizes) {
  return [sizes]() -> abele::NextChunk {
    return [sizes, next = size_t{0}, row = int64_t{0}](Batch& chunk) mutable {
      if (next == sizes.size()) return false;
      const at::Tensor rows = torch::arange(row, row + sizes[next]);
      row += sizes[next++];
      chunk = {rows, rows.view({-1, 1}) * 2.0};
      return true;
    };
  };
}

TEST(DataLoaderSources, ChunksAreJoinedAndSplit) {
  for (DataLoaderMode mode : {DataLoaderMode::kSync, DataLoaderMode::kAsync}) {
    DataLoader loader(calls(2), stream({3, 2, 0, 7, 2}), {.batch_size = 2, .mode = mode});
    const std::vector<std::vector<int64_t>> expected = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}};
    EXPECT_EQ(pass(loader), expected);
    EXPECT_EQ(pass(loader), expected);
    EXPECT_THROW(loader.size(), abele::UserError);
    DataLoader rest(calls(2), stream({3, 2, 0, 7, 2}), {.batch_size = 2, .drop_last = false, .mode = mode});
    EXPECT_EQ(pass(rest).back(), (std::vector<int64_t>{12, 13}));
  }
  Batch batch;
  DataLoader loader(calls(1), stream({1, 5}), {.batch_size = 4});
  ASSERT_TRUE(loader.next(batch));
  EXPECT_TRUE(torch::equal(batch[1], torch::arange(4).view({4, 1}) * 2.0));
}

TEST(DataLoaderSources, ChunksThatDoNotFitAreRefused) {
  auto of = [](std::vector<Batch> chunks) {
    return [chunks]() -> abele::NextChunk {
      return [chunks, i = size_t{0}](Batch& chunk) mutable {
        if (i == chunks.size()) return false;
        chunk = chunks[i++];
        return true;
      };
    };
  };
  Batch batch;
  for (const std::vector<Batch>& wrong : std::vector<std::vector<Batch>>{
           {{}},
           {{torch::tensor(1)}},
           {{torch::ones({2}), torch::ones({3})}},
           {{torch::ones({2})}, {torch::ones({2, 1})}},
           {{torch::ones({2})}, {torch::ones({2}, torch::kLong)}},
       }) {
    DataLoader loader(calls(1), of(wrong), {.batch_size = 4});
    EXPECT_THROW(loader.next(batch), abele::UserError);
  }
  EXPECT_THROW(DataLoader(calls(1), stream({1}), {.shuffle = true}), abele::UserError);
  EXPECT_THROW(DataLoader(calls(1), stream({1}), {.num_processes = 2}), abele::UserError);
}

TEST(DataLoaderSources, ProcessesLoadTheirOwnShare) {
  auto share = [](int64_t id, bool drop_last) {
    DataLoader loader(calls(2), {torch::arange(26)},
                      {.batch_size = 2, .drop_last = drop_last, .num_processes = 3, .process_id = id});
    return flat(pass(loader));
  };
  for (int64_t id = 0; id < 3; ++id) {
    const std::vector<int64_t> rows = share(id, true);
    ASSERT_EQ(rows.size(), 8u);
    for (int64_t i = 0; i < 8; ++i) EXPECT_EQ(rows[i], id * 8 + i);
  }
  EXPECT_EQ(share(0, false).size(), 9u);
  EXPECT_EQ(share(1, false).front(), 9);
  EXPECT_EQ(share(2, false).size(), 8u);
  EXPECT_EQ(share(2, false).back(), 25);
  EXPECT_THROW(DataLoader(calls(1), {torch::arange(4)}, {.num_processes = 2, .process_id = 2}), abele::UserError);
  EXPECT_THROW(DataLoader(calls(1), {torch::arange(4)}, {.buffer_size = 0}), abele::UserError);
}

TEST(DataLoaderSources, ProcessesShareOneShuffledOrder) {
  std::vector<DataLoader> loaders;
  for (int64_t id = 0; id < 2; ++id)
    loaders.emplace_back(
        calls(2), Batch{torch::arange(11)},
        abele::DataLoaderOptions{.batch_size = 2, .shuffle = true, .seed = 3, .num_processes = 2, .process_id = id});
  std::set<int64_t> seen;
  for (int i = 0; i < 4; ++i) {
    std::set<int64_t> now;
    for (DataLoader& loader : loaders)
      for (int64_t row : flat(pass(loader))) now.insert(row);
    EXPECT_EQ(now.size(), 8u);  // 8 of 11 samples, each at most once in a pass
    seen.insert(now.begin(), now.end());
  }
  EXPECT_EQ(seen.size(), 11u);
}

struct Squares : torch::data::Dataset<Squares> {
  torch::data::Example<> get(size_t i) override {
    const auto value = static_cast<int64_t>(i);
    return {torch::full({3}, value, torch::kLong), torch::tensor(value * value)};
  }
  std::optional<size_t> size() const override { return 10; }
};
struct Endless : Squares {
  std::optional<size_t> size() const override { return std::nullopt; }
};

TEST(DataLoaderSources, DataSetsOfTorch) {
  for (DataLoaderMode mode : {DataLoaderMode::kSync, DataLoaderMode::kAsync}) {
    DataLoader plain(calls(2), Squares(), {.batch_size = 2, .mode = mode});
    DataLoader stacked(calls(2), Squares().map(torch::data::transforms::Stack<>()), {.batch_size = 2, .mode = mode});
    DataLoader mapped(calls(2),
                      Squares().map(torch::data::transforms::Lambda<torch::data::Example<>>(
                          [](torch::data::Example<> e) { return e; })),
                      {.batch_size = 2, .mode = mode});
    for (DataLoader* loader : {&plain, &stacked, &mapped}) {
      EXPECT_EQ(loader->size(), 2);
      Batch batch;
      loader->reset();
      ASSERT_TRUE(loader->next(batch));
      ASSERT_TRUE(loader->next(batch));
      ASSERT_EQ(batch.size(), 2u);
      EXPECT_EQ(batch[0].sizes(), (std::vector<int64_t>{4, 3}));
      EXPECT_TRUE(torch::equal(batch[1], torch::tensor({16, 25, 36, 49})));
      EXPECT_FALSE(loader->next(batch));
    }
  }
  EXPECT_THROW(DataLoader(calls(1), Endless(), {}), abele::UserError);
}

template <class Sample>
struct SamplesOf : torch::data::Dataset<SamplesOf<Sample>, Sample> {
  explicit SamplesOf(std::function<Sample(size_t)> make) : make(std::move(make)) {}
  Sample get(size_t i) override { return make(i); }
  std::optional<size_t> size() const override { return 4; }
  std::function<Sample(size_t)> make;
};

template <class Sample>
Batch batchOf(std::function<Sample(size_t)> make) {
  DataLoader loader(calls(2), SamplesOf<Sample>(std::move(make)), {.batch_size = 2});
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  return batch;
}

TEST(DataLoaderSources, SamplesAreStructuresOfTensors) {
  using Tensors = std::vector<at::Tensor>;
  const auto one = [](size_t i) { return torch::full({3}, static_cast<double>(i)); };
  const at::Tensor all = torch::arange(4.0).reshape({4, 1}).expand({4, 3});
  const auto expect = [&](const Batch& found, size_t tensors) {
    ASSERT_EQ(found.size(), tensors);
    for (const at::Tensor& each : found) EXPECT_TRUE(torch::equal(each, all));
  };
  expect(batchOf<Tensors>([&](size_t i) { return Tensors{one(i), one(i), one(i)}; }), 3);
  expect(batchOf<std::pair<at::Tensor, at::Tensor>>([&](size_t i) { return std::pair(one(i), one(i)); }), 2);
  using Example = torch::data::Example<Tensors, at::Tensor>;
  expect(batchOf<Example>([&](size_t i) { return Example(Tensors{one(i), one(i)}, one(i)); }), 3);
  using Named = std::map<std::string, at::Tensor>;
  expect(batchOf<Named>([&](size_t i) { return Named{{"a 12:-=", one(i)}, {"b", one(i)}}; }), 2);
}

TEST(DataLoaderSources, DictionariesOfSamplesKeepTheirOrder) {
  using Ordered = torch::OrderedDict<std::string, at::Tensor>;
  const auto sample = [](size_t i, bool turned) {
    const at::Tensor label = torch::tensor(static_cast<int64_t>(i)), image = torch::full({2}, static_cast<float>(i));
    Ordered all;
    if (turned) all.insert("image", image);
    all.insert("label", label);
    if (!turned) all.insert("image", image);
    return all;
  };
  const Batch batch = batchOf<Ordered>([&](size_t i) { return sample(i, false); });
  EXPECT_EQ(batch.at(0).scalar_type(), at::kLong);
  EXPECT_EQ(batch.at(1).dim(), 2);
  // The columns would mix different values.
  const std::string text = abele::test::errorOf([&] { batchOf<Ordered>([&](size_t i) { return sample(i, i == 2); }); });
  EXPECT_NE(text.find("E0801"), std::string::npos) << text;
  EXPECT_NE(text.find("{image: a tensor, label: a tensor}"), std::string::npos) << text;
  EXPECT_NE(text.find("{label: a tensor, image: a tensor}"), std::string::npos) << text;
  using Named = std::map<std::string, at::Tensor>;
  EXPECT_EQ(codeOf([] { batchOf<Named>([](size_t i) { return Named{{i == 2 ? "z" : "x", torch::zeros({2})}}; }); }),
            "E0801");
}

TEST(DataLoaderSources, NumbersInSamplesAreRefused) {
  using Labelled = torch::data::Example<at::Tensor, int64_t>;
  EXPECT_EQ(codeOf([] { batchOf<Labelled>([](size_t i) { return Labelled(torch::zeros({3}), int64_t(i)); }); }),
            "E0801");
  EXPECT_EQ(codeOf([] { batchOf<torch::data::Example<>>([](size_t) { return torch::data::Example<>({}, {}); }); }),
            "E0801");
}

}  // namespace data_loader_sources_test
