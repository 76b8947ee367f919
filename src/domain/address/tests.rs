use super::*;

const PUBLIC_ONLY: AddressPolicy = AddressPolicy { allow_private: false, allow_loopback: false, allowed: Vec::new() };

fn permitted(policy: &AddressPolicy, ip: &str) -> bool {
    policy.permits(ip.parse().unwrap()).is_ok()
}

#[test]
fn s1_first_and_last_of_each_block_are_refused_and_their_neighbours_are_not() {
    // before the block, first, last, behind it; "" where the neighbour is refused for another reason or does not exist
    for [before, first, last, behind] in [
        ["", "0.0.0.0", "0.255.255.255", "1.0.0.0"],
        ["9.255.255.255", "10.0.0.0", "10.255.255.255", "11.0.0.0"],
        ["100.63.255.255", "100.64.0.0", "100.127.255.255", "100.128.0.0"],
        ["126.255.255.255", "127.0.0.0", "127.255.255.255", "128.0.0.0"],
        ["168.63.129.15", "168.63.129.16", "168.63.129.16", "168.63.129.17"],
        ["169.253.255.255", "169.254.0.0", "169.254.255.255", "169.255.0.0"],
        ["172.15.255.255", "172.16.0.0", "172.31.255.255", "172.32.0.0"],
        ["191.255.255.255", "192.0.0.0", "192.0.0.255", "192.0.1.0"],
        ["192.0.1.255", "192.0.2.0", "192.0.2.255", "192.0.3.0"],
        ["192.88.98.255", "192.88.99.0", "192.88.99.255", "192.88.100.0"],
        ["192.167.255.255", "192.168.0.0", "192.168.255.255", "192.169.0.0"],
        ["198.17.255.255", "198.18.0.0", "198.19.255.255", "198.20.0.0"],
        ["198.51.99.255", "198.51.100.0", "198.51.100.255", "198.51.101.0"],
        ["203.0.112.255", "203.0.113.0", "203.0.113.255", "203.0.114.0"],
        ["223.255.255.255", "224.0.0.0", "239.255.255.255", ""],
        ["", "240.0.0.0", "255.255.255.255", ""],
        ["2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:200::"],
        ["2001:db7:ffff::", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::"],
        ["2001:ffff::", "2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2003::"],
        ["3ffe:ffff::", "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", "3fff:1000::"],
        ["", "::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::"],
        ["3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "4000::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", ""],
    ] {
        for refused in [first, last] {
            assert!(!permitted(&PUBLIC_ONLY, refused), "{refused}");
        }
        for neighbour in [before, behind].into_iter().filter(|ip| !ip.is_empty()) {
            assert!(permitted(&PUBLIC_ONLY, neighbour), "{neighbour}");
        }
    }
}

#[test]
fn s2_ipv4_in_ipv6_clothes_is_refused_even_where_private_is_allowed() {
    let private = AddressPolicy { allow_private: true, ..PUBLIC_ONLY };
    for ip in [
        "::ffff:127.0.0.1",
        "::ffff:8.8.8.8",
        "::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:0:4136:e378::1",
        "fe80::1",
        "ff02::1",
        "169.254.169.254",
        "0.0.0.0",
        "255.255.255.255",
    ] {
        assert!(!permitted(&PUBLIC_ONLY, ip) && !permitted(&private, ip), "{ip}");
    }
}

#[test]
fn s5_each_switch_opens_its_own_class_and_a_listed_network_only_itself() {
    let private = AddressPolicy { allow_private: true, ..PUBLIC_ONLY };
    let dev = AddressPolicy { allow_loopback: true, ..PUBLIC_ONLY };
    let listed = AddressPolicy { allowed: vec!["169.254.7.0/24".parse().unwrap()], ..PUBLIC_ONLY };
    for (ip, by_private, by_dev, by_list) in [
        ("127.0.0.1", true, true, false),
        ("::1", true, true, false),
        ("10.1.2.3", true, false, false),
        ("100.64.0.1", true, false, false),
        ("fd00::1", true, false, false),
        ("169.254.7.9", false, false, true),
        ("169.254.8.1", false, false, false),
        ("8.8.8.8", true, true, true),
    ] {
        let seen = (permitted(&private, ip), permitted(&dev, ip), permitted(&listed, ip));
        assert_eq!(seen, (by_private, by_dev, by_list), "{ip}");
    }
}

#[test]
fn c108_only_plain_http_urls_are_targets() {
    use UrlRefused::*;
    let long = format!("http://h/{}", "x".repeat(URL_MAX));
    for (text, why) in [
        ("ftp://h/", Scheme),
        ("file:///etc/passwd", Scheme),
        ("gopher://h/", Scheme),
        ("javascript:alert(1)", Scheme),
        ("ws://h/", Scheme),
        ("http://", Host),
        ("http:///x", Host),
        ("http:\\\\h\\x", Scheme),
        ("http:h", Scheme),
        ("http:/h", Scheme),
        ("//host", Scheme),
        ("/hook", Scheme),
        ("host", Scheme),
        ("", Scheme),
        ("http://?q", Host),
        ("http://:80/", Host),
        (" http://h", Blank),
        ("http://h ", Blank),
        ("http://h/a b", Blank),
        ("ht\ntp://h/", Blank),
        ("http://h/a\tb", Blank),
        ("http://h/\u{a0}", Blank),
        ("http://h/\0", Blank),
        ("http://h:0", Port),
        ("http://h:65536", Port),
        ("http://h:x", Port),
        ("http://h/#frag", Fragment),
        ("http://h/#", Fragment),
        ("http://h#", Fragment),
        ("http://u@h/", Userinfo),
        ("http://u:p@h/", Userinfo),
        ("http://@h/", Userinfo),
        ("http://:@h/", Userinfo),
        ("http://u@h\\x", Userinfo),
        ("http://a{b/", Host),
        ("http://./", Host),
        (&long, TooLong),
    ] {
        assert_eq!(parse_target(text).unwrap_err(), why, "{text:?}");
    }
    for text in ["http://[fe80::1%25eth0]/", "http://[::1/", "http://1.2.3.256/", "http://a%zz/", "http://a|b/"] {
        assert!(parse_target(text).is_err(), "{text}");
    }
}

#[test]
fn c108_what_is_accepted_is_normalised_as_the_standard_says() {
    for (text, url) in [
        ("HTTP://HOST/", "http://host/"),
        ("https://h", "https://h/"),
        ("http://h:80/", "http://h/"),
        ("https://h:8443", "https://h:8443/"),
        ("http://h?q", "http://h/?q"),
        ("http://b\u{fc}cher.example/", "http://xn--bcher-kva.example/"),
        ("http://h\u{3002}example/", "http://h.example/"),
        ("http://h/?q=\u{fc}", "http://h/?q=%C3%BC"),
        ("http://h/?a=1&a=2&&b=%zz", "http://h/?a=1&a=2&&b=%zz"),
        ("http://h/a/../b/@x", "http://h/b/@x"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://%31%32%37.0.0.1/", "http://127.0.0.1/"),
        ("http://h./", "http://h./"),
    ] {
        assert_eq!(parse_target(text).map(String::from).as_deref(), Ok(url), "{text}");
    }
    let longest = format!("http://h/{}", "\u{fc}".repeat(URL_MAX - 9));
    assert!(parse_target(&longest).is_ok());
}

#[test]
fn s3_addresses_in_any_spelling_and_localhost_are_refused_where_they_are_visible() {
    for text in [
        "http://127.0.0.1/",
        "http://0x7f.1/",
        "http://2130706433/",
        "http://127.1/",
        "http://017700000001/",
        "http://127.0.0.1./",
        "http://\u{ff11}27.0.0.1/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://169.254.169.254/latest/meta-data",
        "http://0/",
        "https://10.0.0.7:8443/",
        "http://localhost/",
        "http://LOCALHOST:8080/",
        "http://localhost./",
        "http://a.localhost/",
    ] {
        let url = parse_target(text).unwrap();
        assert!(visible_refusal(&url, &PUBLIC_ONLY).is_some(), "{text}");
    }
}

#[test]
fn c097_names_that_only_look_like_refused_addresses_are_fine() {
    for name in [
        "fcshop.example",
        "fd-news.example",
        "10.example",
        "127.example",
        "localhost.example",
        "notlocalhost",
        "8.8.8.8",
    ] {
        let url = parse_target(&format!("https://{name}/")).unwrap();
        assert_eq!(visible_refusal(&url, &PUBLIC_ONLY), None, "{name}");
    }
}

#[test]
fn what_is_allowed_is_not_refused_at_registration() {
    let dev = AddressPolicy { allow_loopback: true, ..PUBLIC_ONLY };
    let six = AddressPolicy { allowed: vec!["::1/128".parse().unwrap()], ..PUBLIC_ONLY };
    for (text, policy, refused) in [
        ("http://localhost:8710/", &dev, false),
        ("http://127.0.0.1:8710/", &dev, false),
        ("http://10.0.0.1/", &dev, true),
        ("http://localhost/", &six, false),
        ("http://127.0.0.1/", &six, true),
    ] {
        assert_eq!(visible_refusal(&parse_target(text).unwrap(), policy).is_some(), refused, "{text}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_panics_and_what_is_accepted_parses_to_itself(text in "(http://)?[ -~\\u{80}-\\u{200}]{0,40}") {
        if let Ok(url) = parse_target(&text) {
            proptest::prop_assert!(url.username().is_empty() && url.fragment().is_none() && url.has_host());
            proptest::prop_assert_eq!(parse_target(url.as_str()), Ok(url));
        }
    }
}
