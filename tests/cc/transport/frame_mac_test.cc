// MACs on control frames: known values, and an attacker on the way between two ranks.
#include "ops/runtime/transport/frame_mac.h"

#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ops/runtime/transport/framing.h"
#include "tests/cc/test.h"
#include "tests/cc/transport/fixture.h"

namespace tfring::frame_mac_test {
namespace {

using Kind = ControlEvent::Kind;

std::string Hex(const std::string& bytes) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[c & 15];
  }
  return text;
}

std::string Counting(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i & 0xff);
  return bytes;
}

// RFC 7693, appendix A.
TEST(HashOfTheStandard) {
  Blake2b hash("", 64);
  hash.Update("abc");
  EXPECT_EQ(Hex(hash.Finish()),
            std::string("ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
                        "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"));
}

// hashlib.blake2b(bytes(8) + data, key=bytes(range(32)), digest_size=16) of Python.
TEST(MacsArePythons) {
  const std::vector<std::pair<size_t, std::string>> known = {
      {0, "a93a3b99d2c6ddb6177797d4335c4a42"},    {1, "2b2925fafd5806b7145c34cdcb026137"},
      {120, "ce15c0dd165636dbe80df948cd016d60"},  {128, "b84a9e533092481156a69626687cd1c7"},
      {129, "7f90f911fa98412ccb7210c74d49a7c0"},  {256, "0e640da9e82014738e30f32fa032a2ef"},
      {1000, "c5992afaea0987259f3cfeb334094ea2"},
  };
  for (const auto& [size, expected] : known) {
    FrameMac mac(Counting(32));
    EXPECT_EQ(Hex(mac.Next(Counting(size))), expected);
    EXPECT_TRUE(Hex(mac.Next(Counting(size))) != expected);  // the second frame of the stream
  }
}

std::unique_ptr<TcpControlTransport> WithMacs(Rank peer, int fd, std::string send,
                                              std::string receive) {
  std::vector<TcpControlTransport::Peer> peers;
  peers.push_back({peer, UniqueFd(fd), 0, std::move(send), std::move(receive)});
  return std::move(*TcpControlTransport::Create(std::move(peers)));
}

TEST(AKeyOfAnotherSizeIsRefused) {
  const std::string key(kMacKeyBytes, 'k');
  const auto create = [](const std::string& send, const std::string& receive) {
    std::vector<TcpControlTransport::Peer> peers;
    auto [a, b] = ConnectedSockets(Link::kUnix);
    close(b);
    peers.push_back({3, UniqueFd(a), 0, send, receive});
    return TcpControlTransport::Create(std::move(peers)).status();
  };
  EXPECT_EQ(create(key, key).ToString(), "Ok");
  EXPECT_EQ(create("", "").ToString(), "Ok");
  for (const std::string& bad : {std::string("k"), key + "k", std::string(200, 'k'),
                                 std::string()}) {  // the last: MACs in one direction only
    for (const Status& status : {create(bad, key), create(key, bad)}) {
      EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument);
      EXPECT_CONTAINS(status.message(), "control connection to rank 3: its keys have");
      EXPECT_CONTAINS(status.message(), "give two keys of 32 bytes, or none");
    }
  }
}

std::string ReadBytes(int fd, size_t count) {
  std::string bytes(count, '\0');
  size_t have = 0;
  while (have < count) {
    const ssize_t n = recv(fd, bytes.data() + have, count - have, 0);
    if (n <= 0) break;
    have += static_cast<size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

// Two ranks whose connection goes through a relay, which hands on `change` of three frames.
std::vector<ControlEvent> ThroughARelay(
    const std::function<std::string(std::vector<std::string>)>& change, size_t events) {
  const std::string key(32, 'k');
  auto [a, near] = ConnectedSockets(Link::kTcp);
  auto [far, b] = ConnectedSockets(Link::kTcp);
  auto sender = WithMacs(1, a, key, std::string(32, 'o'));
  auto receiver = WithMacs(0, b, std::string(32, 'o'), key);
  std::vector<std::string> frames;
  for (const std::string text : {"first", "other", "third"}) {
    sender->Send(1, text);
    frames.push_back(ReadBytes(near, kFrameHeaderBytes + kMacBytes + text.size()));
  }
  const std::string bytes = change(frames);
  EXPECT_EQ(send(far, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  std::vector<ControlEvent> seen = Collect(receiver.get(), events);
  close(near);
  close(far);
  return seen;
}

TEST(ARelayThatChangesNothingIsNotNoticed) {
  auto seen = ThroughARelay([](auto f) { return f[0] + f[1] + f[2]; }, 3);
  ASSERT_EQ(seen.size(), size_t{3});
  EXPECT_EQ(seen[0].frame + seen[1].frame + seen[2].frame, std::string("firstotherthird"));
}

TEST(ARelayCannotChangeAnything) {
  const std::string header("\x03\x00\x00\x00", 4);
  const std::vector<std::function<std::string(std::vector<std::string>)>> changes = {
      [](auto f) { return f[0] + f[0]; },                                  // repeats
      [](auto f) { return f[0] + f[2]; },                                  // leaves out
      [](auto f) { return f[0] + f[2] + f[1]; },                           // exchanges
      [=](auto f) { return f[0] + header + "bad"; },                       // its own, too short
      [](auto f) { return f[0] + f[1].substr(0, 20) + f[2].substr(20); },  // another body
      [](auto f) {
        f[1].back() ^= 1;
        return f[0] + f[1] + f[2];
      },
      [](auto f) {
        f[1][kFrameHeaderBytes] ^= 1;
        return f[0] + f[1] + f[2];
      },
  };
  for (const auto& change : changes) {
    auto seen = ThroughARelay(change, 2);
    ASSERT_EQ(seen.size(), size_t{2});
    EXPECT_EQ(seen[0].frame, std::string("first"));
    EXPECT_TRUE(seen[1].kind == Kind::kPeerLost && seen[1].peer == 0);
    EXPECT_CONTAINS(seen[1].reason, "was changed on its way");
  }
}

// A frame of one direction is no frame of the other.
TEST(ARelayCannotReflect) {
  auto [a, near] = ConnectedSockets(Link::kTcp);
  auto rank = WithMacs(1, a, std::string(32, 's'), std::string(32, 'r'));
  rank->Send(1, "hello");
  const std::string bytes = ReadBytes(near, kFrameHeaderBytes + kMacBytes + 5);
  EXPECT_EQ(send(near, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  auto seen = Collect(rank.get(), 1);
  ASSERT_EQ(seen.size(), size_t{1});
  EXPECT_TRUE(seen[0].kind == Kind::kPeerLost);
  close(near);
}

}  // namespace
}  // namespace tfring::frame_mac_test
