#include "collective/shared_channel.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace abele::collective {
namespace {

using Outcome = SharedChannel::Outcome;

const auto kNever = [] { return false; };

// Both ends, in this process.
struct Ends {
  explicit Ends(size_t ring_bytes) : out(SharedChannel::make(ring_bytes)), in(SharedChannel::open(out->offer())) {
    EXPECT_TRUE(in);
    EXPECT_TRUE(out->watch(SharedChannel::identify()));
  }
  std::unique_ptr<SharedChannel> out, in;
};

TEST(SharedChannel, BringsMessagesOfAnySizeInOrder) {
  Ends ends(1 << 12);
  std::mt19937 draw(3);
  std::vector<std::vector<char>> sent;
  for (int i = 0; i < 300; ++i) {
    sent.emplace_back(draw() % (i % 10 == 0 ? 20000 : 700));
    for (char& byte : sent.back()) byte = static_cast<char>(draw());
  }
  std::thread sender([&] {
    for (const auto& message : sent) EXPECT_EQ(ends.out->send(message.data(), message.size(), kNever), Outcome::kDone);
  });
  for (const auto& message : sent) {
    std::vector<char> got(message.size());
    ASSERT_EQ(ends.in->receive(got.data(), got.size(), kNever), Outcome::kDone);
    ASSERT_EQ(got, message);
  }
  sender.join();
}

// Many pairs wait for their other side, and for a core, all the time. No message may get lost between a check and a
// sleep.
TEST(SharedChannel, MessagesGoToAndFroBetweenManyPairs) {
  struct Pair {
    Ends there{1 << 12}, back{1 << 12};
  };
  std::vector<std::unique_ptr<Pair>> pairs;
  std::vector<std::thread> threads;
  for (int p = 0; p < 8; ++p) {
    Pair& pair = *pairs.emplace_back(std::make_unique<Pair>());
    threads.emplace_back([&pair] {
      for (int i = 0, got = 0; i < 2000; ++i) {
        ASSERT_EQ(pair.there.out->send(&i, sizeof i, kNever), Outcome::kDone);
        ASSERT_EQ(pair.back.in->receive(&got, sizeof got, kNever), Outcome::kDone);
        ASSERT_EQ(got, i + 1);
      }
    });
    threads.emplace_back([&pair] {
      for (int i = 0, got = 0; i < 2000; ++i) {
        ASSERT_EQ(pair.there.in->receive(&got, sizeof got, kNever), Outcome::kDone);
        ASSERT_EQ(got, i);
        ++got;
        ASSERT_EQ(pair.back.out->send(&got, sizeof got, kNever), Outcome::kDone);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedChannel, GivesWhatWasSentBeforeItWasClosed) {
  Ends ends(1 << 12);
  const int sent = 5;
  EXPECT_EQ(ends.out->send(&sent, sizeof sent, kNever), Outcome::kDone);
  ends.out->close();
  int got = 0;
  EXPECT_EQ(ends.in->receive(&got, sizeof got, kNever), Outcome::kDone);
  EXPECT_EQ(got, sent);
  EXPECT_EQ(ends.in->receive(&got, sizeof got, kNever), Outcome::kLost);
}

TEST(SharedChannel, AWaitCanBeStopped) {
  Ends ends(64);
  char byte = 0;
  EXPECT_EQ(ends.in->receive(&byte, 1, [] { return true; }), Outcome::kStopped);
  const std::vector<char> more(65);
  EXPECT_EQ(ends.out->send(more.data(), more.size(), [] { return true; }), Outcome::kStopped);
}

TEST(SharedChannel, HearsThatTheOtherProcessEnded) {
  const auto out = SharedChannel::make(64);
  const std::string offer = out->offer();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string own = SharedChannel::identify();
    const auto in = SharedChannel::open(offer);
    if (!in || write(ends[1], own.data(), own.size()) < 0) _exit(1);
    char byte = 0;
    in->receive(&byte, 1, kNever);
    kill(getpid(), SIGKILL);
  }
  std::string identity(SharedChannel::kOfferBytes, ' ');
  ASSERT_EQ(read(ends[0], identity.data(), identity.size()), static_cast<ssize_t>(identity.size()));
  ASSERT_TRUE(out->watch(identity));
  EXPECT_EQ(out->send("x", 1, kNever), Outcome::kDone);
  const std::vector<char> more(65);  // beyond what the ring holds
  EXPECT_EQ(out->send(more.data(), more.size(), kNever), Outcome::kLost);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  for (const int end : ends) close(end);
}

TEST(SharedChannel, RefusesOffersOfOthers) {
  const auto out = SharedChannel::make(64);
  const std::string offer = out->offer();
  EXPECT_TRUE(SharedChannel::open(offer));
  std::string other = offer;
  other[0] = other[0] == '9' ? '8' : '9';  // another host
  EXPECT_FALSE(SharedChannel::open(other));
  EXPECT_FALSE(SharedChannel::open(std::string(SharedChannel::kOfferBytes, ' ')));
  EXPECT_FALSE(SharedChannel::open("nothing of the kind"));
}

}  // namespace
}  // namespace abele::collective
